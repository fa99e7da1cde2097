#include "worker/collective/flight_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "protocol/prng.h"
#include "worker/collective/socket.h"

namespace muster {

namespace {

constexpr std::string_view kSuffix = ".flight";
// Of a job's or a worker's name in the name of the file.
constexpr std::size_t kMaxPlainBytes = 80;

std::uint64_t DigestOf(std::string_view text) {
  std::uint64_t digest = text.size();
  for (const char c : text) digest = Mix64(digest ^ static_cast<unsigned char>(c));
  return digest;
}

// A part of a file's name, distinct for distinct texts.
std::string Plain(const std::string& text) {
  std::string plain = text.substr(0, kMaxPlainBytes);
  for (char& c : plain) {
    const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '-' || c == '_' || c == '.';
    if (!fits) c = '_';
  }
  // No hidden file.
  if (plain.starts_with('.')) plain[0] = '_';
  return plain == text ? plain : plain + "_" + ToHex(DigestOf(text)).substr(0, 8);
}

// The text of a small file of /proc; empty when it cannot be read.
std::string ReadSmall(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 2048> text{};
  const ssize_t got = file.valid() ? ::read(file.get(), text.data(), text.size()) : 0;
  return got > 0 ? std::string(text.data(), static_cast<std::size_t>(got)) : std::string();
}

struct ProcessFacts {
  bool seen = false;
  char state = '?';
  std::uint64_t start_ticks = 0;
};

ProcessFacts FactsOf(std::int64_t pid) {
  const std::string stat = ReadSmall(fmt::format("/proc/{}/stat", pid));
  // The command's name, in parentheses, may hold anything; the state is field 3, the start field
  // 22.
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= stat.size()) return {};
  ProcessFacts facts;
  facts.seen = true;
  facts.state = stat[name_end + 2];
  std::size_t at = name_end + 2;
  for (int field = 3; field < 22; ++field) {
    at = stat.find(' ', at);
    if (at == std::string::npos) return facts;
    ++at;
  }
  std::from_chars(stat.data() + at, stat.data() + stat.size(), facts.start_ticks);
  return facts;
}

// Names the machine's boot and the PID namespace of this process; 0 when either is not to be had.
std::uint64_t PidSpace() {
  const std::string boot = ReadSmall("/proc/sys/kernel/random/boot_id");
  struct stat about {};
  if (boot.empty() || ::stat("/proc/self/ns/pid", &about) != 0) return 0;
  return Mix64(DigestOf(boot) ^ about.st_ino) | 1U;
}

// Removes what the rules in the header do not keep.
void RemoveOld(const std::string& directory, const FlightIdentity& self) {
  Result<FlightFolder> folder = ReadFlights(directory);
  if (!folder.ok()) return;
  std::vector<FoundFlight> dead;
  for (FoundFlight& found : folder->flights) {
    if (found.liveness == Liveness::kDead) dead.push_back(std::move(found));
  }
  std::sort(dead.begin(), dead.end(), [](const FoundFlight& a, const FoundFlight& b) {
    return a.log.place.unix_ns > b.log.place.unix_ns;
  });
  bool kept_own = false;
  std::size_t kept = 0;
  for (const FoundFlight& found : dead) {
    const FlightIdentity& whose = found.log.identity;
    const bool own = whose.job == self.job && whose.worker == self.worker;
    const bool keep = kept < kMaxDeadFlights && !(own && std::exchange(kept_own, true));
    if (keep) {
      ++kept;
    } else {
      ::unlink(found.path.c_str());
    }
  }
}

Status MakeDirectory(const std::string& directory, bool is_default) {
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return FromErrno(errno, "cannot make the directory of flight rings " + directory);
  }
  if (!is_default) return {};
  // Anybody can make a directory of this name in /dev/shm.
  struct stat about {};
  if (::lstat(directory.c_str(), &about) != 0) return FromErrno(errno, "cannot use " + directory);
  if (!S_ISDIR(about.st_mode) || about.st_uid != ::geteuid() || (about.st_mode & 022U) != 0) {
    return PermissionDenied(
        fmt::format("{} is not a directory that this user alone can write to: remove it, or set "
                    "MUSTER_FLIGHT_DIR",
                    directory));
  }
  return {};
}

}  // namespace

std::string DefaultFlightDirectory() { return fmt::format("/dev/shm/muster-{}", ::geteuid()); }

FlightIdentity ThisProcess(const JobName& job, const WorkerId& worker) {
  FlightIdentity self;
  self.job = job.value();
  self.worker = worker.value();
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) == 0) self.host = host.data();
  self.pid = ::getpid();
  self.start_ticks = FactsOf(self.pid).start_ticks;
  self.pid_space = PidSpace();
  return self;
}

Liveness LivenessOf(const FlightIdentity& identity) {
  const FlightIdentity self = ThisProcess({}, {});
  if (identity.pid_space == 0 || identity.pid_space != self.pid_space) return Liveness::kUnknown;
  const ProcessFacts facts = FactsOf(identity.pid);
  if (!facts.seen) {
    // A process that /proc hides from this user is not dead.
    const bool gone = ::kill(static_cast<pid_t>(identity.pid), 0) != 0 && errno == ESRCH;
    return gone ? Liveness::kDead : Liveness::kUnknown;
  }
  const bool same = facts.start_ticks == identity.start_ticks;
  return same && facts.state != 'Z' && facts.state != 'X' ? Liveness::kAlive : Liveness::kDead;
}

std::string FlightFileName(const FlightIdentity& identity) {
  return fmt::format("{}-{}-{}{}", Plain(identity.job), Plain(identity.worker), identity.pid,
                     kSuffix);
}

Result<FlightFolder> ReadFlights(const std::string& directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(::opendir(directory.c_str()), ::closedir);
  if (!opened) return FromErrno(errno, "cannot list the flight rings in " + directory);
  std::set<std::string> paths;
  while (const dirent* entry = ::readdir(opened.get())) {
    const std::string_view name = entry->d_name;
    if (name.ends_with(kSuffix)) paths.insert(directory + "/" + std::string(name));
  }
  FlightFolder folder;
  for (const std::string& path : paths) {
    Result<FlightLog> log = ReadFlightRing(path);
    if (log.ok()) {
      const Liveness liveness = LivenessOf(log->identity);
      folder.flights.push_back({path, *std::move(log), liveness});
    } else if (log.status().code() != Code::kNotFound) {
      folder.unreadable.push_back(log.status().message());
    }
  }
  return folder;
}

Status FlightFile::Open(const std::string& directory, const FlightIdentity& identity) {
  const std::string place = directory.empty() ? DefaultFlightDirectory() : directory;
  MUSTER_RETURN_IF_ERROR(MakeDirectory(place, directory.empty()));
  RemoveOld(place, identity);
  const std::string path = place + "/" + FlightFileName(identity);
  // A dead process of the same number may have left its own.
  if (const auto old = ReadFlightRing(path); old.ok() ? LivenessOf(old->identity) == Liveness::kDead
                                                      : old.status().code() == Code::kDataLoss) {
    ::unlink(path.c_str());
  }
  Result<FlightRing> ring = FlightRing::Create(path, identity);
  if (!ring.ok()) return ring.status();
  ring_ = std::move(*ring);
  return {};
}

void FlightFile::Remove() {
  if (!ring_.active()) return;
  ::unlink(ring_.path().c_str());
  ring_ = FlightRing();
}

}  // namespace muster
