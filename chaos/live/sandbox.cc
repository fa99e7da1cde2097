#include "chaos/live/sandbox.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "chaos/live/network.h"

namespace muster::chaos {
namespace {

bool WriteFile(const std::string& path, const std::string& text) {
  const int file = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool ok = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(file);
  return ok;
}

// A user namespace in which we are root: what follows is then allowed to us.
bool BecomeRootInside(uid_t uid, gid_t gid) {
  if (unshare(CLONE_NEWUSER) != 0) return false;
  WriteFile("/proc/self/setgroups", "deny");
  return WriteFile("/proc/self/uid_map", fmt::format("0 {} 1\n", uid)) &&
         WriteFile("/proc/self/gid_map", fmt::format("0 {} 1\n", gid));
}

void RaiseLoopback() {
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return;
  ifreq request{};
  std::strncpy(request.ifr_name, "lo", IFNAMSIZ - 1);
  if (ioctl(socket, SIOCGIFFLAGS, &request) == 0) {
    request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
    ioctl(socket, SIOCSIFFLAGS, &request);
  }
  close(socket);
}

// With this code the one inside says that it cannot have a /proc of its own.
constexpr int kNoProc = 251;

// The one outside: hands signals on, and returns what the one inside ended with.
int AwaitInside(pid_t inside) {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&wanted, signal);
  const int signals = signalfd(-1, &wanted, SFD_CLOEXEC);
  int status = 0;
  while (true) {
    const pid_t ended = waitpid(inside, &status, WNOHANG);
    if (ended == inside || (ended < 0 && errno == ECHILD)) break;
    signalfd_siginfo info{};
    if (read(signals, &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) continue;
    const int number = static_cast<int>(info.ssi_signo);
    if (number != SIGCHLD) kill(inside, number);
  }
  close(signals);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// What namespaces there are; each may be refused by itself.
struct Namespaces {
  bool mounts = false;
  bool network = false;
  bool processes = false;
};

Namespaces Unshare(bool processes) {
  Namespaces made;
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  if (uid != 0 && !BecomeRootInside(uid, gid)) return made;
  made.mounts =
      unshare(CLONE_NEWNS) == 0 && mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  made.network = unshare(CLONE_NEWNET) == 0;
  // Without a /proc of its own, numbers of processes would be those of another world.
  made.processes = processes && made.mounts && unshare(CLONE_NEWPID) == 0;
  return made;
}

// `parent` as getppid() says it: 0 in a PID namespace that it is not in.
void DieWithParent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // it died before the line above
}

std::vector<std::string> MissingTools() {
  std::vector<std::string> missing;
  const std::array<std::pair<const char*, const char*>, 4> tools = {
      {{"ip", "iproute2"}, {"tc", "iproute2"}, {"ss", "iproute2"}, {"nft", "nftables"}}};
  for (const auto& [tool, package] : tools) {
    bool found = false;
    for (const char* directory : {"/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"}) {
      found = found || access((std::string(directory) + tool).c_str(), X_OK) == 0;
    }
    if (!found) missing.push_back(fmt::format("{} (package {})", tool, package));
  }
  return missing;
}

void ProbePowers(const Namespaces& made, Sandbox* sandbox) {
  sandbox->powers.mounts = made.mounts;
  if (!made.network) return;
  std::string lack;
  for (const std::string& tool : MissingTools()) lack += (lack.empty() ? "" : ", ") + tool;
  if (!lack.empty()) {
    sandbox->lacks.push_back("no faults of the network: install " + lack);
    return;
  }
  const Result<std::unique_ptr<Network>> trial = Network::Make({"musterd", "a"}, false);
  if (!trial.ok()) {
    sandbox->lacks.push_back("no faults of the network: " + trial.status().message());
    return;
  }
  sandbox->powers.network = true;
}

bool IsLocked(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return true;  // not ours to judge
  const bool locked = flock(file, LOCK_EX | LOCK_NB) != 0;
  close(file);
  return locked;
}

}  // namespace

Sandbox EnterSandbox() {
  sigset_t old;
  sigset_t handed;
  sigemptyset(&handed);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&handed, signal);
  sigprocmask(SIG_BLOCK, &handed, &old);
  Sandbox sandbox;
  bool processes = true;
  const pid_t outside = getpid();
  // A child tries it, so that the one outside stays as it was. It is the parent of the one inside,
  // and ends with it.
  pid_t middle = fork();
  while (middle > 0) {
    const int code = AwaitInside(middle);
    if (code != kNoProc || !processes) _exit(code);
    processes = false;
    middle = fork();
  }
  if (middle < 0) {
    sigprocmask(SIG_SETMASK, &old, nullptr);
    sandbox.lacks.push_back(fmt::format("no namespaces: fork: {}", std::strerror(errno)));
    return sandbox;
  }
  DieWithParent(outside);
  const Namespaces made = Unshare(processes);
  if (made.processes) {
    const pid_t inside = fork();
    if (inside > 0) _exit(AwaitInside(inside));
    DieWithParent(0);
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) != 0) {
      _exit(kNoProc);
    }
  } else {
    sandbox.lacks.push_back(
        "no namespace of processes (be root, or allow users theirs: sysctl "
        "kernel.unprivileged_userns_clone=1): what a killed lab leaves behind may outlive it");
  }
  // Ctrl-C on a terminal reaches the one outside, which hands it on: once is enough.
  setpgid(0, 0);
  if (made.network) RaiseLoopback();
  sigprocmask(SIG_SETMASK, &old, nullptr);
  ProbePowers(made, &sandbox);
  return sandbox;
}

std::vector<std::string> RemoveResidue(const std::string& parent, const std::string& prefix) {
  std::vector<std::string> removed;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(parent, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string path = entry->path().string();
    struct stat facts {};
    if (!entry->path().filename().string().starts_with(prefix + "-")) continue;
    if (lstat(path.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode)) continue;
    if (facts.st_uid != geteuid() || IsLocked(path + "/lock")) continue;
    std::error_code failed;
    std::filesystem::remove_all(path, failed);
    if (!failed) removed.push_back(path);
  }
  return removed;
}

Status ClaimDirectory(const std::string& directory) {
  const std::string path = directory + "/lock";
  // Kept open for good: the lock goes with the process.
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return FromErrno(errno, path);
  if (flock(file, LOCK_EX | LOCK_NB) != 0) return FromErrno(errno, path);
  return {};
}

void ReapEnded(const std::vector<int>& known) {
  std::vector<pid_t> seen;
  while (true) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    const bool ours = std::find(known.begin(), known.end(), info.si_pid) != known.end();
    // The oldest is shown again and again until it is reaped: those behind one of ours wait.
    if (ours) return;
    waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

}  // namespace muster::chaos
