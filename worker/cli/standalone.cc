#include "worker/cli/standalone.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/auxv.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "protocol/transport/steady_clock.h"

namespace muster::cli {
namespace {

constexpr Duration kStartLimit = Duration::Seconds(30);
constexpr int kStopLimitMs = 10'000;
// A musterd that dies more often than this has a lasting reason.
constexpr int kMaxRevivals = 5;

Result<std::string> TemporaryDirectory() {
  const char* root = std::getenv("TMPDIR");
  std::string pattern =
      std::string(root != nullptr && *root != '\0' ? root : "/tmp") + "/muster-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) {
    return FromErrno(errno, "cannot make a directory for musterd: " + pattern +
                                "; name one with --data-dir or set TMPDIR");
  }
  return pattern;
}

std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace

std::string BesideThisExecutable(const std::string& name) {
  // What the kernel was given to execute: known even where /proc is not mounted.
  const auto* path = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  if (path == nullptr) return name;
  std::error_code error;
  const auto self = std::filesystem::canonical(path, error);
  const auto beside = self.parent_path() / name;
  return !error && std::filesystem::exists(beside, error) ? beside.string() : name;
}

Result<std::unique_ptr<Standalone>> Standalone::Start(const std::string& musterd,
                                                      const std::string& data_directory,
                                                      int signals) {
  std::unique_ptr<Standalone> standalone(new Standalone);
  standalone->musterd_ = musterd;
  standalone->data_directory_ = data_directory;
  if (data_directory.empty()) {
    Result<std::string> made = TemporaryDirectory();
    if (!made.ok()) return made.status();
    standalone->data_directory_ = *made;
    standalone->remove_data_ = true;
  } else {
    std::error_code error;
    std::filesystem::create_directories(data_directory, error);
    if (error) return FromErrno(error.value(), "cannot make --data-dir " + data_directory);
  }
  // Left by an earlier run; it would be taken for the new one's.
  std::error_code ignored;
  std::filesystem::remove(standalone->data_directory_ + "/port", ignored);
  MUSTER_RETURN_IF_ERROR(standalone->Launch("127.0.0.1:0"));
  MUSTER_RETURN_IF_ERROR(standalone->AwaitPort(signals));
  return standalone;
}

Status Standalone::Launch(const std::string& listen) {
  ProgramSpec spec;
  spec.arguments = {musterd_,
                    "--listen",
                    listen,
                    "--data-dir",
                    data_directory_,
                    "--port-file",
                    data_directory_ + "/port"};
  spec.own_output = false;
  Result<ChildProcess> process = ChildProcess::Start(spec);
  if (!process.ok()) {
    return Status(
        process.status().code(),
        process.status().message() + "; it is looked for beside this program, then in PATH");
  }
  process_.emplace(std::move(*process));
  return {};
}

Status Standalone::AwaitPort(int signals) {
  const FileDescriptor watch(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (!watch.open() ||
      inotify_add_watch(watch.get(), data_directory_.c_str(), IN_MOVED_TO | IN_CLOSE_WRITE) < 0) {
    return FromErrno(errno, "cannot watch " + data_directory_);
  }
  const Instant deadline = MonotonicNow() + kStartLimit;
  // The first look comes after the watch is set, so that no moment is missed.
  for (;;) {
    if (const std::string address = FirstLine(data_directory_ + "/port"); !address.empty()) {
      url_ = "http://" + address;
      return {};
    }
    std::array<pollfd, 3> entries = {pollfd{.fd = watch.get(), .events = POLLIN, .revents = 0},
                                     pollfd{.fd = pidfd(), .events = POLLIN, .revents = 0},
                                     pollfd{.fd = signals, .events = POLLIN, .revents = 0}};
    const Duration left = deadline - MonotonicNow();
    if (left <= Duration()) {
      return DeadlineExceeded(fmt::format("{} did not begin to listen within {} s", musterd_,
                                          kStartLimit.millis() / 1000));
    }
    if (poll(entries.data(), entries.size(), static_cast<int>(left.millis()) + 1) <= 0) continue;
    if (entries[1].revents != 0) {
      return Unavailable(fmt::format("{} {} before it listened; its last line says why", musterd_,
                                     process_->AwaitEnd().ToString()));
    }
    if (entries[2].revents != 0) return Interrupted("stopped before musterd listened");
    // What happened is of no interest: the file is looked at again.
    std::array<char, 4096> events;
    while (read(watch.get(), events.data(), events.size()) > 0) {
    }
  }
}

std::string Standalone::Revive() {
  const std::string ended = "musterd " + process_->AwaitEnd().ToString();
  process_.reset();
  if (++revivals_ > kMaxRevivals) {
    return ended +
           " again and stays down; the workers train on without it, but no failure is "
           "mended";
  }
  const Status started = Launch(url_.substr(url_.find("//") + 2));
  if (!started.ok()) return ended + "; " + started.message();
  return ended + "; started it again at " + url_ + "; the workers train on and come back to it";
}

Standalone::~Standalone() {
  if (process_.has_value()) {
    process_->Signal(SIGTERM);
    pollfd entry{.fd = process_->pidfd(), .events = POLLIN, .revents = 0};
    while (poll(&entry, 1, kStopLimitMs) < 0 && errno == EINTR) {
    }
    process_.reset();
  }
  if (remove_data_) {
    std::error_code ignored;
    std::filesystem::remove_all(data_directory_, ignored);
  }
}

}  // namespace muster::cli
