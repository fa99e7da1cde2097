#include "worker/cli/launcher.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

#include "protocol/check.h"
#include "protocol/transport/steady_clock.h"
#include "worker/cli/standalone.h"

namespace muster::cli {
namespace {

constexpr Duration kNoticeInterval = Duration::Millis(200);
constexpr std::size_t kReadBytes = std::size_t{16} << 10U;
// How long the launcher's exit waits for someone to read the last lines.
constexpr int kFlushLimitMs = 5000;
// What is read of a dead worker's pipe at most: twice what a pipe can hold. Somebody else may still
// write to it.
constexpr std::size_t kMaxRemainsBytes = std::size_t{2} << 20U;

// poll() counts in milliseconds; rounded up, so that a deadline has passed when it returns.
int PollTimeout(Instant deadline, Instant now) {
  if (deadline == Instant::Never()) return -1;
  if (deadline <= now) return 0;
  return static_cast<int>(std::min<std::int64_t>((deadline - now).millis() + 1, 3'600'000));
}

std::string_view SignalName(int signal) { return signal == SIGINT ? "SIGINT" : "SIGTERM"; }

// The descriptors of one poll() and what to do when each is ready. A negative one is skipped.
class PollSet {
 public:
  void Add(int fd, short events) { entries_.push_back({.fd = fd, .events = events, .revents = 0}); }
  void Wait(int timeout_ms) {
    if (poll(entries_.data(), entries_.size(), timeout_ms) >= 0) return;
    MUSTER_CHECK(errno == EINTR, "poll of own descriptors");
    for (pollfd& entry : entries_) entry.revents = 0;
  }
  // In the order of Add.
  [[nodiscard]] bool NextReady() { return entries_.at(next_++).revents != 0; }

 private:
  std::vector<pollfd> entries_;
  std::size_t next_ = 0;
};

}  // namespace

Result<FileDescriptor> CatchSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  if (pthread_sigmask(SIG_BLOCK, &set, nullptr) != 0) return Internal("cannot block signals");
  signal(SIGPIPE, SIG_IGN);
  FileDescriptor fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.open()) return FromErrno(errno, "cannot receive signals");
  return fd;
}

std::vector<std::pair<std::string, std::string>> WorkerEnvironment(const LauncherOptions& options,
                                                                   int local_rank) {
  return {{"MUSTER_COORDINATOR", options.coordinator},
          {"MUSTER_JOB", options.job},
          {"MUSTER_NODE", options.node},
          {"MUSTER_WORKER", fmt::format("{}-{}", options.node, local_rank)},
          {"LOCAL_RANK", std::to_string(local_rank)},
          {"LOCAL_WORLD_SIZE", std::to_string(options.workers)}};
}

Launcher::Launcher(LauncherOptions options, int signals, Attestor& attestor, Standalone* standalone,
                   int output_fd, int error_fd)
    : options_(std::move(options)),
      signals_(signals),
      attestor_(attestor),
      standalone_(standalone),
      output_(output_fd),
      errors_(error_fd) {
  MUSTER_CHECK(options_.workers > 0 && !options_.program.empty(), "there is something to run");
  for (int i = 0; i < options_.workers; ++i) {
    Slot slot;
    slot.local_rank = i;
    slot.name = WorkerId(fmt::format("{}-{}", options_.node, i));
    slots_.push_back(std::move(slot));
  }
}

int Launcher::Run() {
  CheckNotice(MonotonicNow());
  for (Slot& slot : slots_) {
    slot.parked = noticed_;
    if (slot.parked) continue;
    if (const Status started = Launch(slot); !started.ok()) {
      // The same program would fail for the others too.
      const ExitState exit{.code = started.code() == Code::kNotFound ? 127 : 126};
      FailForGood(slot, exit, started.message());
      StopAll(SIGKILL);
      break;
    }
  }
  while (Running()) PollOnce();
  if (exit_code_ == 0) Say("every worker ended well");
  output_.Flush(kFlushLimitMs);
  errors_.Flush(kFlushLimitMs);
  return exit_code_;
}

bool Launcher::Running() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) {
    return slot.process.has_value() || slot.restart_at != Instant::Never() || slot.parked;
  });
}

Status Launcher::Launch(Slot& slot) {
  slot.restart_at = Instant::Never();
  ProgramSpec spec;
  spec.arguments = options_.program;
  spec.environment = WorkerEnvironment(options_, slot.local_rank);
  Result<ChildProcess> process = ChildProcess::Start(spec);
  if (!process.ok()) return process.status();
  slot.process.emplace(std::move(*process));
  const std::string prefix = fmt::format("[{}] ", slot.name.value());
  slot.output.emplace(prefix);
  slot.errors.emplace(prefix);
  attestor_.Report({.worker = slot.name, .pid = slot.process->pid(), .alive = true, .detail = ""});
  Say(fmt::format("started worker {} (pid {})", slot.name.value(), slot.process->pid()));
  return {};
}

void Launcher::PollOnce() {
  PollSet set;
  for (Slot& slot : slots_) set.Add(slot.process ? slot.process->pidfd() : -1, POLLIN);
  for (Slot& slot : slots_) {
    // A full queue lets the workers wait in their writes.
    set.Add(slot.process && !output_.full() ? slot.process->output().get() : -1, POLLIN);
    set.Add(slot.process && !errors_.full() ? slot.process->errors().get() : -1, POLLIN);
  }
  set.Add(output_.empty() ? -1 : output_.fd(), POLLOUT);
  set.Add(errors_.empty() ? -1 : errors_.fd(), POLLOUT);
  set.Add(signals_, POLLIN);
  set.Add(attestor_.news_fd(), POLLIN);
  set.Add(standalone_ != nullptr ? standalone_->pidfd() : -1, POLLIN);
  set.Wait(PollTimeout(NextDeadline(), MonotonicNow()));

  // Deaths first: every other worker waits for what they set going.
  for (Slot& slot : slots_) {
    if (set.NextReady()) OnDeath(slot);
  }
  for (Slot& slot : slots_) {
    const bool output_ready = set.NextReady();
    const bool errors_ready = set.NextReady();
    if (!slot.process) continue;
    if (output_ready) Relay(slot.process->output(), *slot.output, output_);
    if (errors_ready) Relay(slot.process->errors(), *slot.errors, errors_);
  }
  if (set.NextReady()) output_.WriteSome();
  if (set.NextReady()) errors_.WriteSome();
  if (set.NextReady()) OnSignal();
  if (set.NextReady()) OnNews();
  if (set.NextReady()) Say(standalone_->Revive());
  const Instant now = MonotonicNow();
  if (now >= kill_at_) {
    Say(fmt::format("some workers did not leave within {}: killing them",
                    DurationText(options_.stop_timeout)));
    KillAll();
  }
  CheckNotice(now);
  RestartDue(now);
}

// Whoever writes such files need not tell us, nor keep to one file system: they are looked for.
void Launcher::CheckNotice(Instant now) {
  if (options_.notice_file.empty() || stopping_ || now < notice_check_) return;
  notice_check_ = now + kNoticeInterval;
  const bool there = access(options_.notice_file.c_str(), F_OK) == 0;
  if (there == noticed_) return;
  noticed_ = there;
  if (there) {
    Say(fmt::format(
        "{} says that this node will be taken away: the workers are asked to leave, and "
        "come back if it is withdrawn",
        options_.notice_file));
    for (Slot& slot : slots_) {
      // What waited for its restart waits on.
      slot.parked = slot.process.has_value() || slot.restart_at != Instant::Never();
      slot.restart_at = Instant::Never();
      if (slot.process) slot.process->Signal(SIGTERM);
    }
    return;
  }
  Say(fmt::format("{} is gone: the node stays", options_.notice_file));
  for (Slot& slot : slots_) {
    if (slot.parked && !slot.process) slot.restart_at = now;
    // It was asked to leave, and will: it comes back then.
    slot.returns = slot.parked && slot.process.has_value();
    slot.parked = false;
  }
}

Instant Launcher::NextDeadline() const {
  Instant next = kill_at_;
  if (!options_.notice_file.empty() && !stopping_) next = std::min(next, notice_check_);
  for (const Slot& slot : slots_) next = std::min(next, slot.restart_at);
  return next;
}

void Launcher::RestartDue(Instant now) {
  for (Slot& slot : slots_) {
    if (slot.restart_at > now) continue;
    if (const Status started = Launch(slot); !started.ok()) {
      Say(started.message());
      OnFailure(slot, ExitState{.code = started.code() == Code::kNotFound ? 127 : 126}, 0);
    }
  }
}

void Launcher::Relay(FileDescriptor& from, LineAssembler& lines, OutputQueue& to) {
  std::array<char, kReadBytes> buffer;
  const ssize_t got = read(from.get(), buffer.data(), buffer.size());
  if (got > 0) {
    lines.Feed({buffer.data(), static_cast<std::size_t>(got)}, to.tail());
  } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
    lines.Finish(to.tail());
    from.Close();
  }
}

void Launcher::Remains(FileDescriptor& from, LineAssembler& lines, OutputQueue& to) {
  for (std::size_t i = 0; i < kMaxRemainsBytes / kReadBytes && from.open(); ++i) {
    pollfd more{.fd = from.get(), .events = POLLIN, .revents = 0};
    if (poll(&more, 1, 0) == 0) break;
    Relay(from, lines, to);
  }
  from.Close();
  lines.Finish(to.tail());
}

void Launcher::OnDeath(Slot& slot) {
  ChildProcess& process = *slot.process;
  const ExitState exit = process.AwaitEnd();
  const int pid = process.pid();
  // Before anything else: the other workers' next step waits for this message.
  attestor_.Report({.worker = slot.name, .pid = pid, .alive = false, .detail = exit.ToString()});
  process.KillGroup();
  // What it printed is in the pipes already. A process that left the group may keep them open, so
  // they are read until they are empty, not until they end.
  Remains(process.output(), *slot.output, output_);
  Remains(process.errors(), *slot.errors, errors_);
  slot.process.reset();
  if (slot.parked) {
    // However it ended: it was asked to, and the notice was no fault of its own.
    Say(fmt::format("worker {} (pid {}) {}", slot.name.value(), pid, exit.ToString()));
    return;
  }
  if (!exit.ok()) {
    OnFailure(slot, exit, pid);
  } else if (slot.returns && !stopping_ && !job_ended_) {
    slot.restart_at = MonotonicNow();
  }
  slot.returns = false;
}

void Launcher::OnFailure(Slot& slot, const ExitState& exit, int pid) {
  const std::string what =
      fmt::format("worker {} (pid {}) {}", slot.name.value(), pid, exit.ToString());
  if (stopping_ || job_ended_) {
    FailForGood(slot, exit, what);
    return;
  }
  const Instant now = MonotonicNow();
  slot.failures.push_back(now);
  std::erase_if(slot.failures, [&](Instant at) { return now - at >= options_.restarts.window; });
  const RestartDecision decision = DecideRestart(options_.restarts, slot.failures, now);
  const std::string window = DurationText(options_.restarts.window);
  if (!decision.restart) {
    FailForGood(slot, exit,
                fmt::format("{}: failure {} within {}, more than --max-restarts {}; it stays down, "
                            "the others go on",
                            what, decision.failures, window, options_.restarts.max_restarts));
    return;
  }
  slot.restart_at = now + decision.pause;
  Say(fmt::format("{}; starting it again in {} (restart {} of {} within {})", what,
                  DurationText(decision.pause), decision.failures, options_.restarts.max_restarts,
                  window));
}

void Launcher::FailForGood(const Slot& slot, const ExitState& exit, const std::string& story) {
  if (exit_code_ == 0) exit_code_ = exit.ShellCode();
  Say(fmt::format(
      "{}; {}{}", story, exit.Remedy(),
      slot.output ? fmt::format("; its lines begin with [{}]", slot.name.value()) : ""));
}

void Launcher::OnSignal() {
  signalfd_siginfo info{};
  if (read(signals_, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return;
  const int signal = static_cast<int>(info.ssi_signo);
  if (stopping_) {
    Say(fmt::format("{} again: killing the workers", SignalName(signal)));
    KillAll();
    return;
  }
  Say(fmt::format("{}: the workers get it too and have {} to leave; once more kills them",
                  SignalName(signal), DurationText(options_.stop_timeout)));
  kill_at_ = MonotonicNow() + options_.stop_timeout;
  StopAll(signal);
}

void Launcher::StopAll(int signal) {
  stopping_ = true;
  for (Slot& slot : slots_) {
    slot.restart_at = Instant::Never();
    slot.parked = false;
    if (slot.process) slot.process->Signal(signal);
  }
}

void Launcher::KillAll() {
  kill_at_ = Instant::Never();
  for (const Slot& slot : slots_) {
    if (slot.process) slot.process->KillGroup();
  }
}

void Launcher::OnNews() {
  for (const SessionNews& news : attestor_.TakeNews()) {
    if (!news.line.empty()) Say(news.line);
    if (!news.end.has_value()) continue;
    job_ended_ = true;
    for (Slot& slot : slots_) {
      slot.restart_at = Instant::Never();
      slot.parked = false;
    }
    if (news.end->kind == EndKind::kFailed) {
      Say(fmt::format("job {} failed at step {}: {}", options_.job, news.end->step.value(),
                      news.end->reason));
      if (exit_code_ == 0) exit_code_ = 1;
    }
  }
}

void Launcher::Say(const std::string& line) {
  errors_.tail()->append("[muster] ").append(line).push_back('\n');
}

}  // namespace muster::cli
