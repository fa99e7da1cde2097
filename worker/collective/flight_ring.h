// The flight ring: what a worker's data plane did last, in a file of fixed size that outlives the
// process, SIGKILL included. The training thread writes it through a shared mapping, without a
// system call; anybody may read the file at any time, while it is written too. Comparing the rings
// of all ranks tells who has not entered the operation in which the others wait.
//
// Layout: a page that says whose file it is, with two places (generation, rank) in turns, so that
// one of them is whole at any moment; then kFlightEntries entries of 64 bytes, the n-th operation
// in entry n modulo their number. Everything carries a check word over its content and its number:
// what was caught half written, or is no ring at all, is recognised and never shown. All numbers
// are in the byte order of the machine, for the file does not leave it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/ids.h"
#include "protocol/status.h"

namespace muster {

enum class FlightKind : std::uint8_t {
  kAllReduce = 1,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kExchange,
  kSend,
  kRecv,
  kBarrier,
  kReduceTile,  // a part of the reproducible sum, as one operation on a device
};
inline constexpr FlightKind kLastFlightKind = FlightKind::kReduceTile;

// "all_reduce"; "?" for what is no kind.
[[nodiscard]] std::string_view FlightKindName(FlightKind kind);
// True for kSend and kRecv, which are counted per pair of ranks; the others are counted together,
// as all ranks take part in each.
[[nodiscard]] constexpr bool IsPairwise(FlightKind kind) {
  return kind == FlightKind::kSend || kind == FlightKind::kRecv;
}

// True for those in which all ranks must name the same number of bytes.
[[nodiscard]] constexpr bool HasEqualBytes(FlightKind kind) {
  return !IsPairwise(kind) && kind != FlightKind::kExchange && kind != FlightKind::kReduceTile;
}

enum class FlightOutcome : std::uint8_t { kRunning, kOk, kFailed };

inline constexpr std::size_t kFlightEntries = 1024;
inline constexpr std::size_t kFlightFileBytes = 4096 + kFlightEntries * 64;

// Whose ring it is; constant for its life.
struct FlightIdentity {
  std::string job;     // at most kMaxNameBytes, as the two below; longer ones are cut
  std::string worker;  // its stable name
  std::string host;
  std::int64_t pid = 0;
  // What makes `pid` unique: the process's start in ticks since boot, and where it counts.
  std::uint64_t start_ticks = 0;
  std::uint64_t pid_space = 0;  // of the machine's boot and the PID namespace; 0: not known

  friend bool operator==(const FlightIdentity&, const FlightIdentity&) = default;
};

// Where the worker stands; changes with each generation.
struct FlightPlace {
  Generation generation;  // zero: in none yet
  Lineage lineage;        // zero: not known
  Rank rank{-1};
  std::int32_t world_size = 0;
  // The same moment, that of the change, by CLOCK_MONOTONIC and by the wall clock, in nanoseconds.
  std::int64_t monotonic_ns = 0;
  std::int64_t unix_ns = 0;

  friend bool operator==(const FlightPlace&, const FlightPlace&) = default;
};

struct FlightEntry {
  std::uint64_t index = 0;  // of all operations of the process, from 0
  // Within the generation, from 1: of the operations of all ranks; for kSend and kRecv of those of
  // this direction with `peer`.
  std::int64_t number = 0;
  Generation generation;
  FlightKind kind = FlightKind::kBarrier;
  std::int32_t peer = -1;  // rank: the root of a broadcast, the other end of a pair; else -1
  std::int64_t bytes = 0;
  std::int64_t begin_ns = 0;  // CLOCK_MONOTONIC
  // Running: entered and not left, whether or not the process still lives.
  FlightOutcome outcome = FlightOutcome::kRunning;
  std::int64_t done_ns = 0;  // 0 while it runs; at most three days after begin_ns

  friend bool operator==(const FlightEntry&, const FlightEntry&) = default;
};

// What a ring said when it was read.
struct FlightLog {
  FlightIdentity identity;
  FlightPlace place;
  std::vector<FlightEntry> entries;  // by index; those that were half written are missing
};

// Reads the ring in the file `path`, whoever writes to it at the moment. kNotFound; kDataLoss: no
// ring, cut short, of another version, or not finished by the process that makes it; kInternal and
// the like from the system. Blocks for one read of a small file.
[[nodiscard]] Result<FlightLog> ReadFlightRing(const std::string& path);

// The writing side.
// Threads: one, the training thread. Children made by fork() have no part in it.
class FlightRing {
 public:
  using Ticket = std::uint64_t;

  // Inactive: everything may be called and nothing is written.
  FlightRing() = default;
  // Makes the file, which must not exist: kAlreadyExists. Its room is allocated at once, so that a
  // full disk or memory file system is an error here (kResourceExhausted) and no signal later.
  [[nodiscard]] static Result<FlightRing> Create(const std::string& path,
                                                 const FlightIdentity& identity);
  // Unmaps; the file stays.
  ~FlightRing();
  FlightRing(FlightRing&& other) noexcept;
  FlightRing& operator=(FlightRing&& other) noexcept;
  FlightRing(const FlightRing&) = delete;
  FlightRing& operator=(const FlightRing&) = delete;

  [[nodiscard]] bool active() const { return words_ != nullptr; }
  [[nodiscard]] const std::string& path() const { return path_; }

  // From now on operations belong to this generation and are counted from 1 again.
  void StartGeneration(Generation generation, Lineage lineage, Rank rank, std::int32_t world_size);
  // An operation is entered: one reading of the clock and ten stores. `peer` as in FlightEntry.
  // REQUIRES: bytes >= 0
  [[nodiscard]] Ticket Begin(FlightKind kind, std::int64_t bytes, Rank peer = Rank(-1));
  // It was left. Without effect when kFlightEntries others have begun since.
  void Done(Ticket ticket, bool ok);

 private:
  [[nodiscard]] std::int64_t NextNumber(FlightKind kind, Rank peer);

  std::string path_;
  std::uint64_t* words_ = nullptr;  // the mapping
  std::uint64_t next_ = 0;          // operations begun
  std::uint64_t places_ = 0;        // places written
  Generation generation_;
  std::int64_t number_ = 0;
  std::vector<std::int64_t> sent_;      // by peer
  std::vector<std::int64_t> received_;  // by peer
};

}  // namespace muster
