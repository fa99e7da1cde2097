#include "worker/cli/ops_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "worker/cli/text.h"

namespace muster::cli {
namespace {

// Ranks named one by one in a sentence.
constexpr std::size_t kMaxNamed = 16;

// A ring with what the verdict asks of it.
struct Standing {
  OpsRow row;
  const FlightLog* log = nullptr;

  [[nodiscard]] std::int64_t number() const { return row.shared ? row.shared->number : 0; }
  [[nodiscard]] bool dead() const { return row.liveness == Liveness::kDead; }
  // Inside its last operation of all ranks, or when it died.
  [[nodiscard]] bool inside() const {
    return row.shared && row.shared->outcome == FlightOutcome::kRunning;
  }
  [[nodiscard]] bool inside_pair() const {
    return row.last && IsPairwise(row.last->kind) && row.last->outcome == FlightOutcome::kRunning;
  }
};
using Standings = std::vector<const Standing*>;

double AgeMs(const FlightLog& log, std::int64_t monotonic_ns, const OpsNow& now) {
  // As doubles: rings may hold any numbers.
  const auto moment = static_cast<double>(monotonic_ns);
  const bool here = log.identity.pid_space != 0 && log.identity.pid_space == now.pid_space;
  const double age =
      here ? static_cast<double>(now.monotonic_ns) - moment
           : static_cast<double>(now.unix_ns) - (static_cast<double>(log.place.unix_ns) + moment -
                                                 static_cast<double>(log.place.monotonic_ns));
  return std::max(age / 1e6, 0.0);
}

Standing StandingOf(const FoundFlight& found, const OpsNow& now) {
  Standing standing;
  standing.log = &found.log;
  OpsRow& row = standing.row;
  row.path = found.path;
  row.worker = found.log.identity.worker;
  row.pid = found.log.identity.pid;
  row.host = found.log.identity.host;
  row.liveness = found.liveness;
  row.generation = found.log.place.generation;
  row.rank = found.log.place.rank;
  for (const FlightEntry& entry : found.log.entries) {
    if (entry.generation != row.generation) continue;
    row.last = entry;
    if (!IsPairwise(entry.kind)) row.shared = entry;
  }
  if (row.last) {
    const bool running = row.last->outcome == FlightOutcome::kRunning;
    row.age_ms = AgeMs(found.log, running ? row.last->begin_ns : row.last->done_ns, now);
  }
  return standing;
}

// "a", "a and b", "a, b and c", "a, …, p and 4 more"
std::string Listed(std::vector<std::string> items) {
  if (items.size() > kMaxNamed) {
    const std::size_t more = items.size() - kMaxNamed;
    items.resize(kMaxNamed);
    items.push_back(fmt::format("{} more", more));
  }
  std::string out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += i + 1 == items.size() ? " and " : ", ";
    out += items[i];
  }
  return out;
}

// "rank 2", "ranks 0, 1 (dead) and 3"
std::string Ranks(const Standings& who) {
  std::vector<std::string> items;
  for (const Standing* one : who) {
    items.push_back(fmt::format("{}{}", one->row.rank.value(), one->dead() ? " (dead)" : ""));
  }
  return (who.size() == 1 ? "rank " : "ranks ") + Listed(std::move(items));
}

// "rank 2 (w2, pid 812, dead)"
std::string Named(const Standing& one) {
  std::string life;
  if (one.row.liveness == Liveness::kUnknown) {
    life = " on " + Printable(one.row.host);
  } else {
    life = ", " + LivenessText(one.row.liveness);
  }
  return fmt::format("rank {} ({}, pid {}{})", one.row.rank.value(), Printable(one.row.worker),
                     one.row.pid, life);
}

std::string AllNamed(const Standings& who) {
  std::vector<std::string> items;
  for (const Standing* one : who) items.push_back(Named(*one));
  return Listed(std::move(items));
}

const char* Have(const Standings& who) { return who.size() == 1 ? "has" : "have"; }

// Since the last of the living among them entered; none when all are dead.
std::optional<double> AgeOf(const Standings& who) {
  std::optional<double> age;
  for (const Standing* one : who) {
    if (!one->dead()) age = std::min(age.value_or(one->row.age_ms), one->row.age_ms);
  }
  return age;
}

// Of ranks inside an operation: "ranks 0 and 1 have been for 2.3 s", "rank 0 was when it died".
std::string Been(const Standings& who) {
  if (const std::optional<double> age = AgeOf(who)) {
    return fmt::format("{} {} been for {}", Ranks(who), Have(who), AgeText(*age));
  }
  return Ranks(who) + (who.size() == 1 ? " was when it died" : " were when they died");
}

// An operation of all ranks, with its size if that is the same for all.
std::string SharedText(const FlightEntry& entry) {
  return HasEqualBytes(entry.kind) ? OperationText(entry)
                                   : fmt::format("{} {}", entry.number, FlightKindName(entry.kind));
}

// The verdict about one generation.
class Verdict {
 public:
  Verdict(Standings members, std::int32_t world_size, Generation generation)
      : members_(std::move(members)), world_size_(world_size), generation_(generation) {}

  std::vector<std::string> Say() {
    SayMismatch();
    SayShared();
    for (const Standing* one : members_) {
      if (one->inside_pair()) SayPair(*one);
    }
    SayFailed();
    if (lines_.empty() || !waits_) SayQuiet();
    SayDead();
    SayAbsent();
    return std::move(lines_);
  }

 private:
  template <class Predicate>
  [[nodiscard]] Standings Those(const Predicate& holds) const {
    Standings those;
    for (const Standing* one : members_) {
      if (holds(*one)) those.push_back(one);
    }
    return those;
  }

  // The first operation that is not the same on all ranks that entered it.
  void SayMismatch() {
    using What = std::tuple<FlightKind, std::int64_t, std::int32_t>;
    std::map<std::int64_t, std::map<What, std::pair<FlightEntry, Standings>>> operations;
    for (const Standing* one : members_) {
      for (const FlightEntry& entry : one->log->entries) {
        if (entry.generation != generation_ || IsPairwise(entry.kind)) continue;
        const What what{entry.kind, HasEqualBytes(entry.kind) ? entry.bytes : 0, entry.peer};
        auto& [sample, who] = operations[entry.number][what];
        sample = entry;
        who.push_back(one);
      }
    }
    for (const auto& [number, variants] : operations) {
      if (variants.size() < 2) continue;
      std::vector<std::string> items;
      for (const auto& [what, variant] : variants) {
        const std::string text = SharedText(variant.first);
        items.push_back(
            fmt::format("{} on {}", text.substr(text.find(' ') + 1), Ranks(variant.second)));
      }
      lines_.push_back(
          fmt::format("operation {} is not the same everywhere: {}", number, Listed(items)));
      return;
    }
  }

  void SayShared() {
    std::set<std::int64_t> numbers;
    for (const Standing* one : members_) {
      if (one->inside()) numbers.insert(one->number());
    }
    if (numbers.empty()) return;
    waits_ = true;
    for (const std::int64_t number : numbers) {
      const Standings late = Those([&](const Standing& one) { return one.number() < number; });
      if (late.empty()) continue;
      const Standings waiting = InsideOf(number);
      lines_.push_back(fmt::format("{} {} not entered operation {}, in which {}", AllNamed(late),
                                   Have(late), SharedText(*waiting[0]->row.shared), Been(waiting)));
      for (const std::int64_t before : numbers) {
        if (before < number) SayLeft(before);
      }
      for (const std::int64_t after : numbers) {
        if (after > number) SayAhead(after);
      }
      return;
    }
    for (const std::int64_t number : numbers) SayLeft(number);
  }

  [[nodiscard]] Standings InsideOf(std::int64_t number) const {
    return Those([&](const Standing& one) { return one.inside() && one.number() == number; });
  }

  // Everybody has entered `number`, and some are in it.
  void SayLeft(std::int64_t number) {
    const Standings in = InsideOf(number);
    const std::string operation = SharedText(*in[0]->row.shared);
    if (in.size() == members_.size()) {
      const Standings living = Those([](const Standing& one) { return !one.dead(); });
      const Standings dead = Those([](const Standing& one) { return one.dead(); });
      std::string line = fmt::format("{} entered operation {}", AllHave(), operation);
      if (!living.empty()) line += fmt::format(", in which {}", Been(living));
      if (!dead.empty()) {
        line += fmt::format("; {} died in it", AllNamed(dead));
      } else {
        line += ": nobody is missing";
      }
      lines_.push_back(std::move(line));
      return;
    }
    const std::optional<double> age = AgeOf(in);
    lines_.push_back(
        age ? fmt::format("operation {} is over for the others, and {} {} been in it for {}",
                          operation, Ranks(in), Have(in), AgeText(*age))
            : fmt::format("operation {} is over for the others, and {} died in it", operation,
                          AllNamed(in)));
  }

  void SayAhead(std::int64_t number) {
    const Standings in = InsideOf(number);
    lines_.push_back(
        fmt::format("further on, in operation {}, {}", SharedText(*in[0]->row.shared), Been(in)));
  }

  // One end of a pair, and whether the other end is there.
  void SayPair(const Standing& one) {
    waits_ = true;
    const FlightEntry& entry = *one.row.last;
    const FlightKind opposite =
        entry.kind == FlightKind::kSend ? FlightKind::kRecv : FlightKind::kSend;
    std::string line = fmt::format("{} {} in operation {}", Named(one),
                                   one.dead() ? "died" : "has been", OperationText(entry));
    if (!one.dead()) line += " for " + AgeText(one.row.age_ms);
    const Standings peers =
        Those([&](const Standing& other) { return other.row.rank.value() == entry.peer; });
    if (!peers.empty()) {
      const auto& entries = peers[0]->log->entries;
      const bool there = std::any_of(entries.begin(), entries.end(), [&](const FlightEntry& its) {
        return its.generation == generation_ && its.kind == opposite &&
               its.peer == one.row.rank.value() && its.number >= entry.number;
      });
      line += fmt::format("; {} has {}entered its {}", Named(*peers[0]), there ? "" : "not ",
                          FlightKindName(opposite));
    }
    lines_.push_back(std::move(line));
  }

  void SayFailed() {
    std::map<std::int64_t, Standings> failed;
    for (const Standing* one : members_) {
      if (one->row.shared && one->row.shared->outcome == FlightOutcome::kFailed) {
        failed[one->number()].push_back(one);
      }
    }
    for (const auto& [number, who] : failed) {
      lines_.push_back(fmt::format("operation {} failed or was interrupted on {}",
                                   SharedText(*who[0]->row.shared), Ranks(who)));
    }
  }

  void SayQuiet() {
    const auto less = [](const Standing* a, const Standing* b) {
      return a->number() < b->number();
    };
    const Standing& furthest = **std::max_element(members_.begin(), members_.end(), less);
    const std::int64_t last = furthest.number();
    if (last == 0) {
      lines_.push_back("nobody waits: no operation has begun in this generation");
      return;
    }
    const std::string operation = SharedText(*furthest.row.shared);
    const Standings late = Those([&](const Standing& one) { return one.number() < last; });
    if (late.empty()) {
      lines_.push_back(fmt::format("nobody waits: {} left operation {}", AllHave(), operation));
      return;
    }
    lines_.push_back(
        fmt::format("nobody waits: {} {} not entered operation {}, which is over for "
                    "the others",
                    AllNamed(late), Have(late), operation));
  }

  void SayDead() {
    const Standings dead = Those(
        [](const Standing& one) { return one.dead() && !one.inside() && !one.inside_pair(); });
    if (dead.empty()) return;
    lines_.push_back(fmt::format("{} died outside of any operation", AllNamed(dead)));
  }

  void SayAbsent() {
    std::vector<std::string> absent;
    std::set<std::int32_t> present;
    for (const Standing* one : members_) present.insert(one->row.rank.value());
    // A damaged size must not make a list of billions.
    for (std::int32_t rank = 0; rank < world_size_ && absent.size() <= kMaxNamed; ++rank) {
      if (!present.contains(rank)) absent.push_back(std::to_string(rank));
    }
    if (absent.empty()) return;
    lines_.push_back(fmt::format(
        "of {} {} there is no ring here: on another host, left in order, or not in this "
        "generation yet",
        absent.size() == 1 ? "rank" : "ranks", Listed(absent)));
  }

  [[nodiscard]] std::string AllHave() const {
    return members_.size() == 1 ? "the only rank here has"
                                : fmt::format("all {} ranks have", members_.size());
  }

  const Standings members_;  // by rank, one of each
  const std::int32_t world_size_;
  const Generation generation_;
  bool waits_ = false;
  std::vector<std::string> lines_;
};

}  // namespace

std::string LivenessText(Liveness liveness) {
  switch (liveness) {
    case Liveness::kAlive: return "alive";
    case Liveness::kDead: return "dead";
    case Liveness::kUnknown: break;
  }
  return "?";
}

std::string OperationText(const FlightEntry& entry) {
  std::string text = fmt::format("{} {}", entry.number, FlightKindName(entry.kind));
  if (entry.kind != FlightKind::kBarrier) {
    text += " of " + BytesText(static_cast<double>(entry.bytes));
  }
  if (entry.kind == FlightKind::kSend) text += fmt::format(" to rank {}", entry.peer);
  if (entry.kind == FlightKind::kRecv || entry.kind == FlightKind::kBroadcast) {
    text += fmt::format(" from rank {}", entry.peer);
  }
  return text;
}

namespace {

JobOps CompareJob(const std::string& job, std::vector<Standing> all) {
  JobOps ops;
  ops.job = job;
  // The living first, then those whose generation began last: the numbers of generations alone
  // would not do, as they begin anew with a new coordinator.
  std::stable_sort(all.begin(), all.end(), [](const Standing& a, const Standing& b) {
    const auto key = [](const Standing& one) {
      return std::pair(one.dead() ? 0 : 1, one.log->place.unix_ns);
    };
    return key(a) > key(b);
  });
  const auto newest = std::find_if(
      all.begin(), all.end(), [](const Standing& one) { return one.row.generation.value() > 0; });
  std::map<std::int32_t, Standing*> by_rank;
  if (newest != all.end()) {
    const FlightPlace& place = newest->log->place;
    ops.generation = place.generation;
    ops.world_size = place.world_size;
    for (Standing& one : all) {
      const FlightPlace& its = one.log->place;
      const bool same_lineage =
          its.lineage == place.lineage || its.lineage == Lineage() || place.lineage == Lineage();
      if (its.generation != place.generation || !same_lineage) continue;
      one.row.current = by_rank.try_emplace(one.row.rank.value(), &one).second;
    }
  }
  Standings members;
  for (const auto& [rank, one] : by_rank) {
    members.push_back(one);
    ops.rows.push_back(one->row);
  }
  for (const Standing& one : all) {
    if (!one.row.current) ops.rows.push_back(one.row);
  }
  ops.verdict = members.empty()
                    ? std::vector<std::string>{"nobody waits: no worker is in a generation yet"}
                    : Verdict(members, ops.world_size, ops.generation).Say();
  return ops;
}

}  // namespace

namespace {

// Jobs of one name that run beside each other, the newest first; what belongs to none that lives
// goes with that.
std::vector<std::vector<Standing>> SplitRuns(std::vector<Standing> all) {
  const auto lineage = [](const Standing& one) { return one.log->place.lineage; };
  std::vector<Lineage> living;
  std::stable_sort(all.begin(), all.end(), [](const Standing& a, const Standing& b) {
    return a.log->place.unix_ns > b.log->place.unix_ns;
  });
  for (const Standing& one : all) {
    if (one.row.liveness != Liveness::kAlive || lineage(one) == Lineage()) continue;
    if (std::find(living.begin(), living.end(), lineage(one)) == living.end()) {
      living.push_back(lineage(one));
    }
  }
  std::vector<std::vector<Standing>> runs(std::max<std::size_t>(living.size(), 1));
  for (Standing& one : all) {
    const auto found = std::find(living.begin(), living.end(), lineage(one));
    runs[found == living.end() ? 0 : static_cast<std::size_t>(found - living.begin())].push_back(
        std::move(one));
  }
  return runs;
}

}  // namespace

std::vector<JobOps> CompareOps(const std::vector<FoundFlight>& flights, const OpsNow& now,
                               const std::string& only) {
  std::map<std::string, std::vector<Standing>> jobs;
  for (const FoundFlight& found : flights) {
    const std::string& job = found.log.identity.job;
    if (only.empty() || job == only) jobs[job].push_back(StandingOf(found, now));
  }
  std::vector<JobOps> all;
  for (auto& [job, standings] : jobs) {
    std::vector<std::vector<Standing>> runs = SplitRuns(std::move(standings));
    for (std::vector<Standing>& run : runs) {
      all.push_back(CompareJob(job, std::move(run)));
      if (runs.size() == 1) continue;
      all.back().verdict.push_back(
          fmt::format("{} jobs of this name run on this host, each with a coordinator of its own",
                      runs.size()));
    }
  }
  return all;
}

}  // namespace muster::cli
