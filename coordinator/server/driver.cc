#include "coordinator/server/driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <iterator>
#include <utility>
#include <variant>

#include "protocol/codec.h"
#include "protocol/transport/steady_clock.h"

namespace muster::coordinator {
namespace {

// How often the thread's own punctuality is measured, and how late it may be without a word. A
// lease is at least kMinFailureTimeout, and five heartbeats fit into it.
constexpr Duration kWatchInterval = Duration::Millis(100);
constexpr Duration kLagTolerance = Duration::Millis(100);

// Each hop lets the reactor look at the sockets once (it reports at most 128 at a time); a message
// may take two hops. Bounded, so that a flood cannot hold up time.
constexpr int kQuietHops = 3;
constexpr int kMaxHops = 1000;

// A core that names a deadline in the past again and again must not take the whole processor.
constexpr Duration kLeastWait = Duration::Millis(1);

std::chrono::nanoseconds ToChrono(Duration duration) {
  return std::chrono::nanoseconds(duration.nanos());
}

}  // namespace

// Wraps a completion so that it does nothing once the driver is gone, and when it was cancelled.
template <class F>
auto Driver::Guarded(F function) {
  return [weak = std::weak_ptr<Alive>(alive_), run = std::move(function)](auto&&... arguments) {
    if (weak.lock() == nullptr) return;
    if constexpr (sizeof...(arguments) == 0) {
      run();
    } else if (!(... || static_cast<bool>(arguments))) {
      run();
    }
  };
}

Driver::Driver(IoContext& io, Options options)
    : io_(io),
      persist_(std::move(options.persist)),
      publish_(std::move(options.publish)),
      log_(options.log),
      retry_pause_(options.retry_pause),
      core_(options.config, options.seed, std::move(options.stored), MonotonicNow()),
      retry_(io.get_executor()),
      timer_(io.get_executor()),
      watch_(io.get_executor()),
      expected_(MonotonicNow() + kWatchInterval),
      alive_(std::make_shared<Alive>()) {
  Watch();
  pending_.push_back(core_.TakeEffects());
  Pump();
  Arm();
}

Driver::~Driver() = default;

SessionId Driver::Open(std::shared_ptr<Channel> channel) {
  last_session_ = last_session_.Next();
  sessions_.emplace(last_session_, std::move(channel));
  return last_session_;
}

void Driver::Receive(SessionId session, Message message) {
  ++counts_.received;
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  Handle(Received{session, std::move(message), found->second->peer_address()});
}

void Driver::Command(const Input& input) { Handle(input); }

void Driver::Closed(SessionId session) {
  if (sessions_.erase(session) == 0) return;
  Handle(coordinator::Closed{session});
}

void Driver::Stop() {
  stopped_ = true;
  retry_.cancel();
  timer_.cancel();
  watch_.cancel();
}

std::optional<JobView> Driver::Describe(const JobName& job) const {
  return core_.Describe(job, MonotonicNow());
}

Driver::Counts Driver::counts() const {
  Counts counts = counts_;
  counts.sessions = sessions_.size();
  return counts;
}

void Driver::Handle(const Input& input) {
  if (stopped_) return;
  const Instant now = MonotonicNow();
  CreditLag(now);
  core_.Handle(input, now);
  Effects effects = core_.TakeEffects();
  SendAcknowledgements(&effects);
  if (!effects.empty()) {
    pending_.push_back(std::move(effects));
    Pump();
  }
  Arm();
}

// Before anything else is handled at `now`: whoever was silent while nobody listened is not blamed.
void Driver::CreditLag(Instant now) {
  const Duration late = now - expected_;
  if (late <= kLagTolerance) return;
  expected_ = now;
  counts_.lag = counts_.lag + late;
  core_.Handle(Lagged{late}, now);
}

void Driver::Watch() {
  watch_.expires_after(ToChrono(kWatchInterval));
  watch_.async_wait(Guarded([this] {
    if (stopped_) return;
    const Instant now = MonotonicNow();
    CreditLag(now);
    expected_ = now + kWatchInterval;
    Watch();
  }));
}

void Driver::Arm() {
  if (ticking_ || stopped_) return;
  const Instant deadline = core_.NextDeadline();
  // A timer that is set too early only looks again; this saves one timer operation a heartbeat.
  if (deadline == Instant::Never() || deadline >= armed_) return;
  armed_ = deadline;
  timer_.expires_after(ToChrono(std::max(deadline - MonotonicNow(), kLeastWait)));
  timer_.async_wait(Guarded([this] { OnTimer(); }));
}

void Driver::OnTimer() {
  armed_ = Instant::Never();
  if (stopped_) return;
  if (MonotonicNow() < core_.NextDeadline()) {
    Arm();
    return;
  }
  ticking_ = true;
  DrainThenTick(0, 0, counts_.received);
}

// A heartbeat that waits in a socket counts before its worker is expired.
void Driver::DrainThenTick(int hops, int quiet, std::uint64_t seen) {
  net::post(io_, Guarded([this, hops, quiet, seen] {
              if (stopped_) return;
              const int still = counts_.received == seen ? quiet + 1 : 0;
              if (still < kQuietHops && hops < kMaxHops) {
                DrainThenTick(hops + 1, still, counts_.received);
                return;
              }
              ticking_ = false;
              Handle(Tick{});
            }));
}

// Lets out what may go, in order: effects with nothing to make durable at once, as long as nothing
// before them waits for the store. All that waits is offered to the store as one batch.
void Driver::Pump() {
  if (offered_ > 0) return;
  while (!pending_.empty() && pending_.front().persist.empty()) {
    const Effects effects = std::move(pending_.front());
    pending_.pop_front();
    Emit(effects);
  }
  if (pending_.empty() || stopped_) return;
  offered_ = pending_.size();
  Offer();
}

// While the store fails, what waits may wait for hours, and workers that hear nothing for that long
// stop. That a heartbeat was heard reveals no decision, so this much is said at once.
void Driver::SendAcknowledgements(Effects* effects) {
  if (ready_.ok()) return;
  const auto acks = std::ranges::stable_partition(
      effects->sends, [](const Send& send) { return !std::holds_alternative<Ack>(send.message); });
  Effects acknowledgements;
  acknowledgements.sends.assign(std::move_iterator(acks.begin()), std::move_iterator(acks.end()));
  effects->sends.erase(acks.begin(), acks.end());
  Emit(acknowledgements);
}

void Driver::Offer() {
  std::vector<Persist> batch;
  for (std::size_t i = 0; i < offered_; ++i) {
    const std::vector<Persist>& part = pending_[i].persist;
    batch.insert(batch.end(), part.begin(), part.end());
  }
  persist_(std::move(batch), [&io = io_, weak = std::weak_ptr<Alive>(alive_), this](Status status) {
    net::post(io, [weak, this, status = std::move(status)] {
      if (weak.lock() != nullptr) OnPersisted(status);
    });
  });
}

void Driver::OnPersisted(const Status& status) {
  if (stopped_) return;
  if (!status.ok()) {
    ++counts_.persist_failures;
    if (ready_ != status && log_ != nullptr) {  // once for each reason, not for each attempt
      log_->Error(
          fmt::format("decisions cannot be stored: {}; nothing is sent to workers until "
                      "this is mended, training goes on",
                      status.message()));
    }
    ready_ = status;
    retry_.expires_after(ToChrono(retry_pause_));
    retry_.async_wait(Guarded([this] {
      if (!stopped_) Offer();
    }));
    return;
  }
  ++counts_.persisted;
  if (!ready_.ok()) {
    ready_ = Status();
    if (log_ != nullptr) log_->Info("decisions are stored again");
  }
  for (; offered_ > 0; --offered_) {
    const Effects effects = std::move(pending_.front());
    pending_.pop_front();
    Emit(effects);
  }
  Pump();
}

void Driver::Emit(const Effects& effects) {
  // The same message often goes to many: it is written as text once and shared.
  const Message* last = nullptr;
  std::shared_ptr<const std::string> text;
  for (const Send& send : effects.sends) {
    const auto session = sessions_.find(send.to);
    if (session == sessions_.end()) continue;
    if (last == nullptr || !(*last == send.message)) {
      text = std::make_shared<const std::string>(Encode(send.message));
      last = &send.message;
    }
    session->second->Send(text);
    ++counts_.sent;
  }
  for (const SessionId id : effects.closes) {
    const auto session = sessions_.find(id);
    if (session != sessions_.end()) session->second->Close();
  }
  for (const Event& event : effects.events) {
    if (publish_) publish_(event);
  }
}

}  // namespace muster::coordinator
