#include "worker/collective/flight_ring.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "protocol/check.h"
#include "protocol/limits.h"
#include "protocol/prng.h"
#include "worker/collective/socket.h"

namespace muster {

namespace {

constexpr std::uint64_t kMagic = 0x676e695274676c46;  // "FlgtRing"
constexpr std::uint64_t kVersion = 1;

// The file as words of 8 bytes. The head: magic (written last), version, pid, start ticks, PID
// space, three names of kNameWords each (the length, then bytes), check.
constexpr std::size_t kNameWords = 1 + kMaxNameBytes / 8;
constexpr std::size_t kNames = 5;
constexpr std::size_t kHeadCheck = kNames + 3 * kNameWords;
// Two places: number, generation, lineage, rank and world size, monotonic, unix, check.
constexpr std::size_t kPlaces = 128;
constexpr std::size_t kPlaceWords = 8;
constexpr std::size_t kPlaceCheck = 6;
// Entries: index + 1, number, generation, bytes, begin, kind and peer, check, ending.
constexpr std::size_t kEntries = 4096 / 8;
constexpr std::size_t kEntryWords = 8;
constexpr std::size_t kEntryCheck = 6;
constexpr std::size_t kEntryEnding = 7;
constexpr std::size_t kFileWords = kFlightFileBytes / 8;
static_assert(kHeadCheck < kPlaces && kPlaces + 2 * kPlaceWords <= kEntries);
static_assert(kEntries + kFlightEntries * kEntryWords == kFileWords);
static_assert(kMaxNameBytes % 8 == 0);

// The ending is one word, so that it is there or not: 14 bits of check, 48 bits of nanoseconds
// since the beginning, 2 bits of outcome. Zero: none yet.
constexpr std::uint64_t kMaxSpan = (std::uint64_t{1} << 48U) - 1;

using Words = std::span<const std::uint64_t>;

std::uint64_t CheckOf(Words words) {
  std::uint64_t check = kMagic;
  for (const std::uint64_t word : words) check = std::rotl(check, 23) ^ (word * 0x9e3779b97f4a7c15);
  // Never zero, which is what an empty file holds.
  return Mix64(check) | 1U;
}

std::uint64_t EndingOf(std::uint64_t index, std::uint64_t span, FlightOutcome outcome) {
  const std::uint64_t body = (std::min(span, kMaxSpan) << 2U) | static_cast<std::uint64_t>(outcome);
  return (Mix64(body ^ (index << 20U)) << 50U) | body;
}

std::int64_t Nanos(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::uint64_t Pair(std::int32_t low, std::int32_t high) {
  return static_cast<std::uint32_t>(low) | (std::uint64_t{static_cast<std::uint32_t>(high)} << 32U);
}
std::int32_t Low(std::uint64_t pair) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(pair));
}
std::int32_t High(std::uint64_t pair) { return Low(pair >> 32U); }

void Store(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_relaxed);
}
void Publish(std::uint64_t& word, std::uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_release);
}

void WriteName(std::uint64_t* words, const std::string& name) {
  words[0] = std::min(name.size(), kMaxNameBytes);
  std::memcpy(words + 1, name.data(), words[0]);
}

std::optional<std::string> ReadName(Words words) {
  if (words[0] > kMaxNameBytes) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(&words[1]), words[0]);
}

Result<FlightIdentity> ReadHead(Words file, const std::string& path) {
  if (file[0] == 0) {
    return DataLoss(path + ": not finished by the process that makes it");
  }
  if (file[0] != kMagic) return DataLoss(path + ": this is no flight ring");
  if (file[1] != kVersion) {
    return DataLoss(fmt::format("{}: a flight ring of version {}, and this program reads {}", path,
                                file[1], kVersion));
  }
  const auto name = [&](std::size_t i) {
    return ReadName(file.subspan(kNames + i * kNameWords, kNameWords));
  };
  auto job = name(0);
  auto worker = name(1);
  auto host = name(2);
  if (file[kHeadCheck] != CheckOf(file.subspan(1, kHeadCheck - 1)) || !job || !worker || !host) {
    return DataLoss(path + ": the head of this flight ring is damaged");
  }
  FlightIdentity identity;
  identity.job = *std::move(job);
  identity.worker = *std::move(worker);
  identity.host = *std::move(host);
  identity.pid = static_cast<std::int64_t>(file[2]);
  identity.start_ticks = file[3];
  identity.pid_space = file[4];
  return identity;
}

// The newer one of the two that are whole; that of a process in no generation when none is.
FlightPlace ReadPlace(Words file) {
  FlightPlace newest;
  std::uint64_t newest_number = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    const Words words = file.subspan(kPlaces + i * kPlaceWords, kPlaceWords);
    if (words[0] <= newest_number || words[kPlaceCheck] != CheckOf(words.first(kPlaceCheck))) {
      continue;
    }
    newest_number = words[0];
    newest.generation = Generation(static_cast<std::int64_t>(words[1]));
    newest.lineage = Lineage(words[2]);
    newest.rank = Rank(Low(words[3]));
    newest.world_size = High(words[3]);
    newest.monotonic_ns = static_cast<std::int64_t>(words[4]);
    newest.unix_ns = static_cast<std::int64_t>(words[5]);
  }
  return newest;
}

std::optional<FlightEntry> ReadEntry(Words words, std::size_t slot) {
  const std::uint64_t index = words[0] - 1;  // an entry never written wraps around, and fails below
  const auto kind = static_cast<std::uint64_t>(static_cast<std::uint32_t>(Low(words[5])));
  if (words[0] == 0 || index % kFlightEntries != slot ||
      words[kEntryCheck] != CheckOf(words.first(kEntryCheck)) || kind < 1 ||
      kind > static_cast<std::uint64_t>(kLastFlightKind)) {
    return std::nullopt;
  }
  FlightEntry entry;
  entry.index = index;
  entry.number = static_cast<std::int64_t>(words[1]);
  entry.generation = Generation(static_cast<std::int64_t>(words[2]));
  entry.bytes = static_cast<std::int64_t>(words[3]);
  entry.begin_ns = static_cast<std::int64_t>(words[4]);
  entry.kind = static_cast<FlightKind>(kind);
  entry.peer = High(words[5]);
  const std::uint64_t ending = words[kEntryEnding];
  if (ending == 0) return entry;
  const std::uint64_t span = (ending >> 2U) & kMaxSpan;
  entry.outcome = static_cast<FlightOutcome>(ending & 3U);
  entry.done_ns = entry.begin_ns + static_cast<std::int64_t>(span);
  const bool whole = entry.outcome == FlightOutcome::kOk || entry.outcome == FlightOutcome::kFailed;
  if (!whole || ending != EndingOf(index, span, entry.outcome)) return std::nullopt;
  return entry;
}

Status ReadWords(const std::string& path, std::span<std::uint64_t> words) {
  // Not blocking on a pipe that somebody put there, and through no link.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid()) return FromErrno(errno, "cannot read the flight ring " + path);
  struct stat about {};
  if (::fstat(file.get(), &about) != 0) return FromErrno(errno, "cannot read " + path);
  if (!S_ISREG(about.st_mode) || about.st_size != static_cast<off_t>(kFlightFileBytes)) {
    return DataLoss(
        fmt::format("{}: this is no flight ring, or one cut short: it should be a file "
                    "of {} bytes",
                    path, kFlightFileBytes));
  }
  // Read, not mapped: a file that is cut short meanwhile would be a fatal signal.
  const std::span<std::byte> bytes = std::as_writable_bytes(words);
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got =
        ::pread(file.get(), &bytes[done], bytes.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FromErrno(errno, "cannot read the flight ring " + path);
    if (got == 0) return DataLoss(path + ": this flight ring was cut short while it was read");
    done += static_cast<std::size_t>(got);
  }
  return {};
}

}  // namespace

std::string_view FlightKindName(FlightKind kind) {
  switch (kind) {
    case FlightKind::kAllReduce: return "all_reduce";
    case FlightKind::kAllGather: return "all_gather";
    case FlightKind::kReduceScatter: return "reduce_scatter";
    case FlightKind::kBroadcast: return "broadcast";
    case FlightKind::kExchange: return "exchange";
    case FlightKind::kSend: return "send";
    case FlightKind::kRecv: return "recv";
    case FlightKind::kBarrier: return "barrier";
    case FlightKind::kReduceTile: return "reduce_tile";
  }
  return "?";
}

Result<FlightLog> ReadFlightRing(const std::string& path) {
  std::vector<std::uint64_t> words(kFileWords);
  MUSTER_RETURN_IF_ERROR(ReadWords(path, words));
  const Words file(words);
  Result<FlightIdentity> identity = ReadHead(file, path);
  if (!identity.ok()) return identity.status();
  FlightLog log;
  log.identity = *std::move(identity);
  log.place = ReadPlace(file);
  for (std::size_t slot = 0; slot < kFlightEntries; ++slot) {
    const Words entry = file.subspan(kEntries + slot * kEntryWords, kEntryWords);
    if (auto read = ReadEntry(entry, slot)) log.entries.push_back(*read);
  }
  std::sort(log.entries.begin(), log.entries.end(),
            [](const FlightEntry& a, const FlightEntry& b) { return a.index < b.index; });
  return log;
}

Result<FlightRing> FlightRing::Create(const std::string& path, const FlightIdentity& identity) {
  const UniqueFd file(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!file.valid()) return FromErrno(errno, "cannot make the flight ring " + path);
  const auto fail = [&](int error) {
    ::unlink(path.c_str());
    return FromErrno(error, "cannot make the flight ring " + path);
  };
  int error = 0;
  do {
    error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(kFlightFileBytes));
  } while (error == EINTR);
  if (error != 0) return fail(error);
  void* mapped =
      ::mmap(nullptr, kFlightFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return fail(errno);
  FlightRing ring;
  ring.path_ = path;
  ring.words_ = static_cast<std::uint64_t*>(mapped);
  ring.words_[1] = kVersion;
  ring.words_[2] = static_cast<std::uint64_t>(identity.pid);
  ring.words_[3] = identity.start_ticks;
  ring.words_[4] = identity.pid_space;
  const std::array names = {&identity.job, &identity.worker, &identity.host};
  for (std::size_t i = 0; i < names.size(); ++i) {
    WriteName(ring.words_ + kNames + i * kNameWords, *names[i]);
  }
  ring.words_[kHeadCheck] = CheckOf(Words(ring.words_ + 1, kHeadCheck - 1));
  Publish(ring.words_[0], kMagic);
  ring.StartGeneration(Generation(), Lineage(), Rank(-1), 0);
  return ring;
}

FlightRing::~FlightRing() {
  if (active()) ::munmap(words_, kFlightFileBytes);
}

FlightRing::FlightRing(FlightRing&& other) noexcept { *this = std::move(other); }

FlightRing& FlightRing::operator=(FlightRing&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(words_, other.words_);
  std::swap(next_, other.next_);
  std::swap(places_, other.places_);
  std::swap(generation_, other.generation_);
  std::swap(number_, other.number_);
  std::swap(sent_, other.sent_);
  std::swap(received_, other.received_);
  return *this;
}

void FlightRing::StartGeneration(Generation generation, Lineage lineage, Rank rank,
                                 std::int32_t world_size) {
  MUSTER_CHECK(world_size >= 0, "a world has no negative size");
  generation_ = generation;
  number_ = 0;
  sent_.assign(static_cast<std::size_t>(world_size), 0);
  received_.assign(static_cast<std::size_t>(world_size), 0);
  if (!active()) return;
  // In the place that is not the present one, which stays whole until this one is.
  std::uint64_t* place = words_ + kPlaces + (places_ % 2) * kPlaceWords;
  ++places_;
  const std::array<std::uint64_t, kPlaceCheck> content = {
      places_,
      static_cast<std::uint64_t>(generation.value()),
      lineage.value(),
      Pair(rank.value(), world_size),
      static_cast<std::uint64_t>(Nanos(CLOCK_MONOTONIC)),
      static_cast<std::uint64_t>(Nanos(CLOCK_REALTIME))};
  for (std::size_t i = 0; i < content.size(); ++i) Store(place[i], content[i]);
  Publish(place[kPlaceCheck], CheckOf(content));
}

std::int64_t FlightRing::NextNumber(FlightKind kind, Rank peer) {
  if (!IsPairwise(kind)) return ++number_;
  std::vector<std::int64_t>& counts = kind == FlightKind::kSend ? sent_ : received_;
  const auto at = static_cast<std::size_t>(peer.value());
  // A peer that does not exist is the communicator's to refuse.
  return at < counts.size() ? ++counts[at] : 0;
}

FlightRing::Ticket FlightRing::Begin(FlightKind kind, std::int64_t bytes, Rank peer) {
  MUSTER_CHECK(bytes >= 0, "an operation has no negative size");
  const std::uint64_t index = next_++;
  const std::int64_t number = NextNumber(kind, peer);
  if (!active()) return index;
  std::uint64_t* entry = words_ + kEntries + (index % kFlightEntries) * kEntryWords;
  const std::array<std::uint64_t, kEntryCheck> content = {
      index + 1,
      static_cast<std::uint64_t>(number),
      static_cast<std::uint64_t>(generation_.value()),
      static_cast<std::uint64_t>(bytes),
      static_cast<std::uint64_t>(Nanos(CLOCK_MONOTONIC)),
      Pair(static_cast<std::int32_t>(kind), peer.value())};
  // First the check goes: what ended would otherwise seem to run again.
  Store(entry[kEntryCheck], 0);
  std::atomic_thread_fence(std::memory_order_release);
  Store(entry[kEntryEnding], 0);
  for (std::size_t i = 0; i < content.size(); ++i) Store(entry[i], content[i]);
  Publish(entry[kEntryCheck], CheckOf(content));
  return index;
}

void FlightRing::Done(Ticket ticket, bool ok) {
  MUSTER_CHECK(ticket < next_, "this ticket was never given");
  if (!active() || next_ - ticket > kFlightEntries) return;
  std::uint64_t* entry = words_ + kEntries + (ticket % kFlightEntries) * kEntryWords;
  const auto begin =
      static_cast<std::int64_t>(std::atomic_ref(entry[4]).load(std::memory_order_relaxed));
  const std::int64_t span = std::max<std::int64_t>(Nanos(CLOCK_MONOTONIC) - begin, 0);
  Publish(entry[kEntryEnding], EndingOf(ticket, static_cast<std::uint64_t>(span),
                                        ok ? FlightOutcome::kOk : FlightOutcome::kFailed));
}

}  // namespace muster
