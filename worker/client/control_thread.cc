#include "worker/client/control_thread.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/posix/basic_stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cstdio>
#include <optional>
#include <utility>

#include "protocol/codec.h"
#include "protocol/transport/channel.h"
#include "protocol/transport/dialer.h"
#include "protocol/transport/net.h"
#include "protocol/transport/steady_clock.h"
#include "worker/client/fork_guard.h"
#include "worker/collective/signals_blocked.h"
#include "worker/collective/socket.h"

namespace muster::worker {

namespace {

// How long one wait for the end of an abort may keep this thread from its heartbeats.
constexpr Duration kAbortSlice = Duration::Millis(100);
// A dial is over after this; less when the lease is shorter.
constexpr Duration kDialTimeout = Duration::Seconds(5);
constexpr Duration kStopTimeout = Duration::Millis(1500);
// From telling the coordinator that this process is given up to its end by SIGKILL.
constexpr Duration kLastWords = Duration::Millis(300);

// Written to by the handler of SIGTERM: the event of the last worker that asked for it.
std::atomic<int> leave_event = -1;

void OnSigterm(int) {
  const int saved = errno;
  const std::uint64_t one = 1;
  if (const int fd = leave_event.load(); fd >= 0) (void)!::write(fd, &one, sizeof(one));
  errno = saved;
}

}  // namespace

// Confined to the control thread, but for Post() and the leave event.
class ControlThread::Io {
 public:
  Io(ControlThread& owner, Options options)
      : owner_(owner),
        options_(std::move(options)),
        leave_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        work_(io_.get_executor()),
        timer_(io_),
        stop_timer_(io_),
        kill_timer_(io_),
        leave_stream_(io_, leave_.get()) {
    dial_timeout_ = std::min(kDialTimeout, options_.identity.spec.failure_timeout);
  }

  ~Io() {
    DropChannel();
    if (leave_stream_.is_open()) leave_stream_.release();
    if (options_.leave_on_sigterm) {
      int mine = leave_.get();
      if (leave_event.compare_exchange_strong(mine, -1)) ::sigaction(SIGTERM, &before_, nullptr);
    }
  }

  void Run() {
    AwaitLeave();
    if (options_.leave_on_sigterm) {
      leave_event = leave_.get();
      struct sigaction action {};
      action.sa_handler = &OnSigterm;
      action.sa_flags = SA_RESTART;
      ::sigaction(SIGTERM, &action, &before_);
    }
    Drain();
    io_.run();
  }

  // Any thread: look at owner_.pending_ soon.
  void Post() {
    net::post(io_, [this] { Drain(); });
  }
  void RequestLeave() const noexcept {
    const std::uint64_t one = 1;
    (void)!::write(leave_.get(), &one, sizeof(one));
  }
  void PostStop() {
    net::post(io_, [this] {
      Drain();
      stopping_ = true;
      if (!channel_) return io_.stop();
      channel_->Close();
      stop_timer_.expires_after(std::chrono::nanoseconds(kStopTimeout.nanos()));
      stop_timer_.async_wait([this](const ErrorCode& error) {
        if (!error) io_.stop();
      });
    });
  }
  void StopNow() { io_.stop(); }

 private:
  void Hand(const Input& input) {
    {
      const Lock lock = owner_.Acquire();
      owner_.session_.Handle(input, MonotonicNow());
      owner_.pending_.push_back(owner_.session_.TakeEffects());
    }
    Drain();
  }

  // Does what the session asks for, in order, until there is nothing more; then sets the timer.
  void Drain() {
    if (draining_) return;  // called by what it does itself: the loop below goes on with it
    draining_ = true;
    for (;;) {
      std::vector<Effects> todo;
      {
        const Lock lock = owner_.Acquire();
        todo.swap(owner_.pending_);
      }
      if (todo.empty()) break;
      for (Effects& effects : todo) Perform(effects);
    }
    draining_ = false;
    SetTimer();
  }

  void Perform(Effects& effects) {
    if (effects.abort) Abort(MonotonicNow());
    for (const std::string& notice : effects.notices) {
      std::fprintf(stderr, "muster: %s\n", notice.c_str());
    }
    if (effects.wake) owner_.changed_.notify_all();
    for (const Message& message : effects.sends) {
      if (channel_) channel_->Send(Encode(message));
    }
    if (effects.close) DropChannel();
    if (effects.dial) Dial(*effects.dial);
    for (WriteManifest& request : effects.manifests) owner_.hooks_.manifest(std::move(request));
    for (RemoveCheckpoint& request : effects.removals) owner_.hooks_.removal(std::move(request));
    for (SweepCheckpoints& request : effects.sweeps) owner_.hooks_.sweep(std::move(request));
  }

  void Abort(Instant begun) {
    owner_.interrupted = true;
    std::shared_ptr<Communicator> communicator;
    {
      const Lock lock = owner_.Acquire();
      communicator = owner_.communicator_;
    }
    if (communicator) {
      communicator->Abort();
      const Status aborted = communicator->AwaitAborted(kAbortSlice);
      if (aborted.code() == Code::kDeadlineExceeded) {
        // Heartbeats first, then again.
        net::post(io_, [this, begun] { Abort(begun); });
        return;
      }
      if (!aborted.ok()) return GiveUp(aborted, communicator->stuck());
    }
    Hand(Aborted{(MonotonicNow() - begun).ToMillis()});
  }

  // What this worker computes on is lost. The session tells the coordinator and ends, and with it
  // the training loop. `stuck`: the training thread may be in a call that never returns, and so may
  // exit(): only the kernel ends such a process. Its launcher sees it die, and starts it anew.
  void GiveUp(const Status& why, bool stuck) {
    if (given_up_) return;
    given_up_ = true;
    bool ended = false;
    {
      const Lock lock = owner_.Acquire();
      ended = owner_.session_.ended();
    }
    // After the end of the job the process is the user's alone: it may be saving its model.
    if (ended) stuck = false;
    std::fprintf(stderr, "muster: %s; this worker %s\n", why.message().c_str(),
                 stuck   ? "is given up, and its process killed"
                 : ended ? "has ended, but its process may not be able to exit"
                         : "is given up");
    Hand(Unfit{why});
    if (!stuck) return;
    kill_timer_.expires_after(std::chrono::nanoseconds(kLastWords.nanos()));
    kill_timer_.async_wait([](const ErrorCode& error) {
      if (!error) ::kill(::getpid(), SIGKILL);
    });
  }

  void Dial(std::int64_t number) {
    DialOptions options;
    options.url = options_.identity.url;
    options.token = options_.token;
    options.timeout = dial_timeout_;
    AsyncDial(io_, std::move(options), [this, number](Result<std::shared_ptr<Channel>> result) {
      OnDialed(number, std::move(result));
    });
  }

  void OnDialed(std::int64_t number, Result<std::shared_ptr<Channel>> result) {
    if (stopping_) return io_.stop();
    if (!result.ok()) return Hand(Disconnected{number, result.status()});
    DropChannel();
    channel_ = std::move(*result);
    guarded_ = channel_->native_handle();
    CloseInChildren(guarded_);
    channel_->Start([this, number](std::string_view text) { OnText(number, text); },
                    [this, number](const Status& why) { OnClosed(number, why); });
    connection_ = number;
    LookAtCheckpoints();
    Hand(Connected{number});
  }

  // This worker has taken part in nothing yet, so there is nothing that its waiting could hold up.
  void LookAtCheckpoints() {
    {
      const Lock lock = owner_.Acquire();
      if (!owner_.session_.looks_at_checkpoints()) return;
    }
    Result<std::optional<Found>> found = owner_.hooks_.look();
    if (found.ok()) Hand(Looked{*std::move(found)});
  }

  void OnText(std::int64_t number, std::string_view text) {
    if (number != connection_ || !channel_) return;
    Result<Message> message = Decode(text);
    if (!message.ok()) {
      channel_->Abort(InvalidArgument("the coordinator sent what is no message: " +
                                      message.status().message()));
      return;
    }
    Hand(Received{number, std::move(*message)});
  }

  void OnClosed(std::int64_t number, const Status& why) {
    if (stopping_) return io_.stop();
    if (number != connection_ || !channel_) return;
    ForgetGuarded();
    channel_.reset();
    Hand(Disconnected{number, why});
  }

  void DropChannel() {
    if (!channel_) return;
    ForgetGuarded();
    connection_ = 0;
    // The callbacks of this channel are ignored from now on: the session has dropped it already.
    channel_->Close();
    channel_.reset();
  }

  void ForgetGuarded() { ForgetInChildren(std::exchange(guarded_, -1)); }

  void SetTimer() {
    Instant deadline;
    {
      const Lock lock = owner_.Acquire();
      deadline = owner_.session_.NextDeadline();
    }
    if (deadline == Instant::Never()) {
      timer_.cancel();
      return;
    }
    const Duration left = std::max(deadline - MonotonicNow(), Duration());
    timer_.expires_after(std::chrono::nanoseconds(left.nanos()));
    timer_.async_wait([this](const ErrorCode& error) {
      if (!error) Hand(NowTick());
    });
  }

  Tick NowTick() {
    const Lock lock = owner_.Acquire();
    Tick tick;
    if (owner_.communicator_) tick.operations = owner_.communicator_->operations_begun();
    tick.waiting = owner_.in_operation.load();
    return tick;
  }

  void AwaitLeave() {
    leave_stream_.async_wait(LeaveStream::wait_read, [this](const ErrorCode& error) {
      if (error) return;
      std::uint64_t count = 0;
      (void)!::read(leave_.get(), &count, sizeof(count));
      Hand(LeaveWanted{"asked to leave", {}});
      AwaitLeave();
    });
  }

  using LeaveStream = net::posix::basic_stream_descriptor<Executor>;

  ControlThread& owner_;
  const Options options_;
  UniqueFd leave_;
  Duration dial_timeout_;
  IoContext io_;
  net::executor_work_guard<Executor> work_;
  Timer timer_;
  Timer stop_timer_;
  Timer kill_timer_;
  LeaveStream leave_stream_;
  struct sigaction before_ {};
  std::shared_ptr<Channel> channel_;
  std::int64_t connection_ = 0;
  int guarded_ = -1;
  bool draining_ = false;
  bool given_up_ = false;
  bool stopping_ = false;
};

ControlThread::ControlThread(Options options, Hooks hooks)
    : hooks_(std::move(hooks)),
      session_(options.identity, MonotonicNow()),
      io_(std::make_unique<Io>(*this, std::move(options))) {
  pending_.push_back(session_.TakeEffects());
}

ControlThread::~ControlThread() { Halt(); }

void ControlThread::Halt() {
  if (!thread_.joinable()) return;
  io_->StopNow();
  thread_.join();
}

void ControlThread::Start() {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { io_->Run(); });
}

void ControlThread::Stop() {
  if (!thread_.joinable()) return;
  io_->PostStop();
  thread_.join();
}

void ControlThread::Hand(const Input& input) {
  session_.Handle(input, MonotonicNow());
  Effects effects = session_.TakeEffects();
  pending_.push_back(std::move(effects));
  io_->Post();
}

bool ControlThread::WaitFor(Lock& lock, Duration limit) {
  return changed_.wait_for(lock, std::chrono::nanoseconds(limit.nanos())) ==
         std::cv_status::no_timeout;
}

void ControlThread::SetCommunicator(std::shared_ptr<Communicator> communicator) {
  communicator_ = std::move(communicator);
}

void ControlThread::RequestLeave() const noexcept { io_->RequestLeave(); }

}  // namespace muster::worker
