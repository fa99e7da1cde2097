#include "worker/cli/launcher_session.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "protocol/codec.h"
#include "protocol/prng.h"
#include "protocol/transport/dialer.h"
#include "worker/cli/child_process.h"

namespace muster::cli {
namespace {

constexpr Duration kFirstPause = Duration::Millis(50);
constexpr Duration kMaxPause = Duration::Seconds(1);

// Would the same hello be welcome later? A job that no worker has created yet is unknown.
bool MayComeAgain(Code code) {
  return code == Code::kNotFound || code == Code::kUnavailable || code == Code::kFenced ||
         code == Code::kResourceExhausted;
}

}  // namespace

// Everything but news_ is confined to thread_.
class LauncherSession::Impl {
 public:
  explicit Impl(SessionOptions options)
      : options_(std::move(options)),
        news_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        random_(options_.seed),
        work_(net::make_work_guard(io_)),
        timer_(io_) {
    net::post(io_, [this] { Dial(); });
    thread_ = std::thread([this] { io_.run(); });
  }

  ~Impl() {
    net::post(io_, [this] { Leave(); });
    thread_.join();
  }

  void Report(const Attest& attest) {
    net::post(io_, [this, attest] {
      current_[attest.worker] = attest;
      if (channel_ != nullptr) channel_->Send(Encode(attest));
    });
  }

  [[nodiscard]] int news_fd() const { return news_event_.get(); }

  std::vector<SessionNews> TakeNews() {
    const std::lock_guard lock(mutex_);
    std::uint64_t count = 0;
    // Only resets the event; that there was none is no error.
    if (read(news_event_.get(), &count, sizeof count) < 0) count = 0;
    return std::exchange(news_, {});
  }

 private:
  void Dial() {
    if (leaving_ || over_) return;
    DialOptions dial;
    dial.url = options_.url;
    dial.token = options_.token;
    AsyncDial(io_, dial, [this](Result<std::shared_ptr<Channel>> result) {
      if (leaving_) {
        if (result.ok()) (*result)->Close();
        io_.stop();
        return;
      }
      if (result.ok()) {
        Connected(std::move(*result));
      } else {
        Retry(result.status());
      }
    });
  }

  void Connected(std::shared_ptr<Channel> channel) {
    channel_ = std::move(channel);
    channel_->Start([this](std::string_view text) { Receive(text); },
                    [this](const Status& why) { Closed(why); });
    channel_->Send(Encode(LauncherHello{.job = options_.job, .node = options_.node}));
    for (const auto& [worker, attest] : current_) channel_->Send(Encode(attest));
  }

  void Receive(std::string_view text) {
    const Result<Message> message = Decode(text);
    if (!message.ok()) return;  // a newer musterd may send what this launcher does not know
    if (std::holds_alternative<Welcome>(*message)) {
      pause_ = kFirstPause;
      if (unreachable_said_) Tell("musterd answers again at " + options_.url);
      unreachable_said_ = false;
    } else if (const auto* refused = std::get_if<Refused>(&*message)) {
      refusal_ = Status(refused->code, "musterd at " + options_.url + ": " + refused->reason);
      if (MayComeAgain(refused->code)) return;  // and musterd closes the session
      over_ = true;
      Tell("musterd refuses this launcher: " + refused->reason +
           "; the workers go on, but their deaths are noticed later");
    } else if (const auto* ended = std::get_if<Ended>(&*message)) {
      over_ = true;
      Publish({.line = "", .end = ended->end});
    }
  }

  void Closed(const Status& why) {
    channel_.reset();
    if (leaving_) {
      io_.stop();
    } else if (!over_) {
      Retry(refusal_.ok() ? why : std::exchange(refusal_, Status()));
    }
  }

  void Retry(const Status& why) {
    if (!unreachable_said_ && pause_ > kFirstPause) {
      Tell(why.message() + "; the workers go on, and the launcher keeps trying");
      unreachable_said_ = true;
    }
    // Half of the pause is fixed, half is drawn, so that many launchers do not come at once.
    const auto half = static_cast<std::uint64_t>(pause_.nanos() / 2);
    timer_.expires_after(std::chrono::nanoseconds(half + random_.Below(half + 1)));
    timer_.async_wait([this](const ErrorCode& error) {
      if (!error) Dial();
    });
    pause_ = std::min(pause_ * 2, kMaxPause);
  }

  void Leave() {
    leaving_ = true;
    timer_.cancel();
    if (channel_ != nullptr) {
      channel_->Close();  // Closed() ends the thread
    } else {
      io_.stop();
    }
  }

  void Tell(std::string line) { Publish({.line = std::move(line), .end = std::nullopt}); }

  void Publish(SessionNews news) {
    const std::lock_guard lock(mutex_);
    // Lines are for a reader who is there; the bound is far above what a session says in a second.
    if (news_.size() < 64 || news.end.has_value()) news_.push_back(std::move(news));
    const std::uint64_t one = 1;
    // Fails only when the counter is at its end, and then the event is set.
    if (write(news_event_.get(), &one, sizeof one) < 0) return;
  }

  const SessionOptions options_;
  FileDescriptor news_event_;
  std::mutex mutex_;
  std::vector<SessionNews> news_;  // guarded by mutex_

  Prng random_;
  IoContext io_;
  net::executor_work_guard<Executor> work_;
  Timer timer_;
  std::shared_ptr<Channel> channel_;
  std::map<WorkerId, Attest> current_;
  Duration pause_ = kFirstPause;
  Status refusal_;  // what musterd said before it closed the session; ok: nothing
  bool unreachable_said_ = false;
  bool over_ = false;     // refused for good, or the job has ended: nothing more to say
  bool leaving_ = false;  // the launcher exits
  std::thread thread_;
};

LauncherSession::LauncherSession(SessionOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
LauncherSession::~LauncherSession() = default;
void LauncherSession::Report(const Attest& attest) { impl_->Report(attest); }
int LauncherSession::news_fd() const { return impl_->news_fd(); }
std::vector<SessionNews> LauncherSession::TakeNews() { return impl_->TakeNews(); }

}  // namespace muster::cli
