#include "chaos/live/checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>

#include "chaos/live/violations.h"

namespace muster::chaos {
namespace {

bool Voided(const StepRecord& record, const std::vector<NamedRollback>& rollbacks) {
  return std::any_of(rollbacks.begin(), rollbacks.end(), [&](const NamedRollback& rollback) {
    return record.generation < rollback.generation && record.step > rollback.step;
  });
}

bool Committed(const StepRecord& record) {
  return record.outcome == "apply" || record.outcome == "skip";
}

// The last committed step of each generation, voided or not.
std::map<std::int64_t, std::int64_t> LastSteps(const std::vector<StepRecord>& records) {
  std::map<std::int64_t, std::int64_t> last;
  for (const StepRecord& record : records) {
    if (Committed(record)) {
      last[record.generation] = std::max(last[record.generation], record.step);
    }
  }
  return last;
}

// One epoch's cursor over its positions.
struct Cursor {
  std::int64_t epoch = 0;
  std::int64_t position = 0;
};

// Judges one step's samples and moves the cursor over them; returns how many positions belong to
// ranks that recorded nothing.
std::int64_t TakeStep(const std::vector<const StepRecord*>& ranks, const RunFacts& facts,
                      Cursor* cursor, Violations* violations) {
  const std::int64_t step = ranks.front()->step;
  if (cursor->position == facts.epoch_samples) *cursor = {cursor->epoch + 1, 0};
  const std::int64_t begin = cursor->position;
  const std::int64_t end = std::min(begin + facts.global_batch, facts.epoch_samples);
  std::vector<SampleRange> ranges;
  for (const StepRecord* rank : ranks) {
    if (rank->epoch != cursor->epoch) {
      violations->Add("step {}: rank {} read epoch {}, expected {}", step, rank->rank, rank->epoch,
                      cursor->epoch);
    }
    for (const SampleRange& range : rank->samples) {
      if (range.lo < range.hi) ranges.push_back(range);
    }
  }
  std::sort(ranges.begin(), ranges.end());
  // The deal gives each rank one contiguous part: no more gaps than ranks that recorded nothing.
  std::int64_t gaps_left = ranks.front()->world_size - static_cast<std::int64_t>(ranks.size());
  std::int64_t at = begin;
  std::int64_t absent = 0;
  const auto gap = [&](std::int64_t lo, std::int64_t hi) {
    if (lo >= hi) return;
    absent += hi - lo;
    if (--gaps_left < 0) {
      violations->Add("step {}: {} samples, [{}, {}), were taken by no rank", step, hi - lo, lo,
                      hi);
    }
  };
  for (const SampleRange& range : ranges) {
    if (range.lo < at) {
      violations->Add("step {}: samples [{}, {}) were taken twice", step, range.lo,
                      std::min(at, range.hi));
    }
    gap(at, range.lo);
    at = std::max(at, range.hi);
  }
  if (at > end) violations->Add("step {}: samples [{}, {}) are beyond its batch", step, end, at);
  gap(at, end);
  cursor->position = end;
  return absent;
}

// What all ranks of one step have to agree on.
bool SameResult(const StepRecord& a, const StepRecord& b) {
  return a.outcome == b.outcome && a.world_size == b.world_size && a.epoch == b.epoch &&
         std::bit_cast<std::uint64_t>(a.loss) == std::bit_cast<std::uint64_t>(b.loss);
}

double MeanOf(const std::vector<double>& values, std::size_t from, std::size_t to) {
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(from),
                         values.begin() + static_cast<std::ptrdiff_t>(to), 0.0) /
         static_cast<double>(to - from);
}

}  // namespace

void AddNamed(const std::vector<EventStatus>& events, RunFacts* facts) {
  for (const EventStatus& event : events) {
    if (event.kind == "ended") break;  // who leaves then is no victim
    if (event.kind == "rolled_back") facts->rollbacks.push_back({event.generation, event.step});
    if (event.kind == "worker_dead") {
      facts->evictions.push_back({event.worker, event.incarnation, event.generation + 1});
    }
  }
}

void AddNamed(const std::vector<IncidentStatus>& incidents, RunFacts* facts) {
  for (const IncidentStatus& incident : incidents) {
    const bool known = std::any_of(
        facts->rollbacks.begin(), facts->rollbacks.end(),
        [&](const NamedRollback& rollback) { return rollback.generation == incident.to; });
    if (incident.steps_redone > 0 && !known) {
      facts->rollbacks.push_back({incident.to, incident.restored_step});
    }
  }
}

Standing StandingOf(const RunFacts& facts) {
  Standing standing;
  for (const StepRecord& record : facts.records) {
    if (Committed(record) && !Voided(record, facts.rollbacks)) {
      standing[record.step][record.generation].push_back(&record);
    }
  }
  return standing;
}

std::int64_t StepsRedone(const RunFacts& facts) {
  std::set<std::pair<std::int64_t, std::int64_t>> voided;
  for (const StepRecord& record : facts.records) {
    if (Committed(record) && Voided(record, facts.rollbacks)) {
      voided.emplace(record.generation, record.step);
    }
  }
  return static_cast<std::int64_t>(voided.size());
}

Finding CheckOneGeneration(const RunFacts& facts) {
  Violations violations;
  std::int64_t newest = 0;
  std::set<std::int64_t> generations;
  for (const auto& [step, by_generation] : StandingOf(facts)) {
    if (by_generation.size() > 1) {
      violations.Add("step {} was committed in generation {} and again in {}", step,
                     by_generation.begin()->first, by_generation.rbegin()->first);
    }
    if (by_generation.begin()->first < newest) {
      violations.Add("step {} was committed in generation {} after one of generation {}", step,
                     by_generation.begin()->first, newest);
    }
    newest = std::max(newest, by_generation.rbegin()->first);
    generations.insert(by_generation.begin()->first);
  }
  for (const Eviction& eviction : facts.evictions) {
    for (const StepRecord& record : facts.records) {
      if (record.worker == eviction.worker && record.incarnation == eviction.incarnation &&
          record.generation >= eviction.generation) {
        violations.Add("{} ({}) was declared dead in generation {} and committed step {} in {}",
                       record.worker, record.incarnation, eviction.generation, record.step,
                       record.generation);
      }
    }
  }
  return violations.Close(
      "one_generation",
      fmt::format("the chain runs through generations {}; no step was committed in two of them, "
                  "none by an incarnation after it was declared dead ({} notices)",
                  fmt::join(generations, ", "), facts.evictions.size()));
}

Finding CheckChain(const RunFacts& facts) {
  Violations violations;
  const Standing standing = StandingOf(facts);
  std::int64_t expected = 1;
  for (const auto& [step, by_generation] : standing) {
    if (step > expected) violations.Add("steps {} to {} are missing", expected, step - 1);
    expected = step + 1;
    if (by_generation.size() > 1) violations.Add("step {} stands twice", step);
  }
  if (expected - 1 != facts.steps) {
    violations.Add("the chain ends at step {}, not {}", expected - 1, facts.steps);
  }
  std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> seen;
  for (const StepRecord& record : facts.records) {
    if (Committed(record) && !seen.emplace(record.pid, record.generation, record.step).second) {
      violations.Add("process {} committed step {} of generation {} twice", record.pid, record.step,
                     record.generation);
    }
  }
  std::string evidence = fmt::format("{} committed steps, no gap, no repeat", facts.steps);
  for (const NamedRollback& rollback : facts.rollbacks) {
    evidence +=
        fmt::format("; generation {} went back to step {}", rollback.generation, rollback.step);
  }
  if (const std::int64_t redone = StepsRedone(facts); redone > 0) {
    evidence += fmt::format(" ({} steps were redone)", redone);
  }
  return violations.Close("chain", std::move(evidence));
}

Finding CheckOutcomes(const RunFacts& facts) {
  Violations violations;
  std::map<std::pair<std::int64_t, std::int64_t>, std::map<std::int64_t, const StepRecord*>> steps;
  for (const StepRecord& record : facts.records) {
    if (!Committed(record)) continue;
    const auto [at, fresh] = steps[{record.generation, record.step}].emplace(record.rank, &record);
    if (!fresh && at->second->pid != record.pid) {
      violations.Add("step {} of generation {}: two processes were rank {}", record.step,
                     record.generation, record.rank);
    }
  }
  std::map<std::int64_t, std::int64_t> last = LastSteps(facts.records);
  std::int64_t incomplete = 0;
  for (const auto& [key, ranks] : steps) {
    const auto& [generation, step] = key;
    const StepRecord& first = *ranks.begin()->second;
    for (const auto& [rank, record] : ranks) {
      if (!SameResult(*record, first)) {
        violations.Add(
            "step {} of generation {}: rank {} says {} with loss {}, rank {} says {} "
            "with loss {}",
            step, generation, first.rank, first.outcome, first.loss, rank, record->outcome,
            record->loss);
      }
    }
    const std::int64_t absent = first.world_size - static_cast<std::int64_t>(ranks.size());
    if (absent > 0 && step != last[generation]) {
      violations.Add("step {} of generation {}: {} of {} ranks recorded nothing", step, generation,
                     absent, first.world_size);
    }
    incomplete += absent > 0 ? 1 : 0;
  }
  std::string evidence = "every rank recorded the same outcome and loss for each step";
  if (incomplete > 0) {
    evidence += fmt::format("; in {} of them a rank was cut off after its vote", incomplete);
  }
  return violations.Close("same_outcome", std::move(evidence));
}

Finding CheckSamples(const RunFacts& facts) {
  Violations violations;
  Cursor cursor;
  std::int64_t absent = 0;
  for (const auto& [step, by_generation] : StandingOf(facts)) {
    for (const auto& [generation, ranks] : by_generation) {
      absent += TakeStep(ranks, facts, &cursor, &violations);
    }
  }
  if (facts.records.empty()) violations.Add("no step was recorded");
  const std::int64_t total = cursor.epoch * facts.epoch_samples + cursor.position;
  std::string evidence =
      fmt::format("{} samples, each exactly once ({} in an epoch)", total, facts.epoch_samples);
  if (absent > 0) evidence += fmt::format("; {} of them by a rank cut off after its vote", absent);
  return violations.Close("samples_exact", std::move(evidence));
}

Finding CheckWeights(const RunFacts& facts, std::size_t workers) {
  Violations violations;
  std::map<std::pair<std::int64_t, std::int64_t>, const StepRecord*> by_step;
  std::map<std::string, const StepRecord*> finals;
  for (const StepRecord& record : facts.records) {
    if (record.final) finals[record.worker] = &record;
    if (record.digest.empty() || record.final) continue;
    const StepRecord& first =
        *by_step.emplace(std::pair(record.generation, record.step), &record).first->second;
    if (first.digest != record.digest) {
      violations.Add("step {}: rank {} had gradient {}, rank {} had {}", record.step, first.rank,
                     first.digest, record.rank, record.digest);
    }
  }
  for (const auto& [worker, record] : finals) {
    const StepRecord& first = *finals.begin()->second;
    if (record->digest != first.digest || record->step != first.step) {
      violations.Add("{} ended at step {} with weights {}, {} at step {} with {}", first.worker,
                     first.step, first.digest, worker, record->step, record->digest);
    }
  }
  if (finals.size() != workers) {
    violations.Add("{} workers reported final weights, expected {}", finals.size(), workers);
  }
  std::string text =
      fmt::format("all ranks had the same gradient in each of {} steps", by_step.size());
  if (!finals.empty()) {
    text += fmt::format("; {} workers ended with weights {}", finals.size(), FinalDigestOf(facts));
  }
  return violations.Close("weights_equal", std::move(text));
}

Finding CheckSameResult(const RunFacts& facts, const RunFacts& undisturbed) {
  Violations violations;
  const Standing ours = StandingOf(facts);
  const Standing theirs = StandingOf(undisturbed);
  if (ours.size() != theirs.size() || ours.empty()) {
    violations.Add("{} steps here, {} in the undisturbed run", ours.size(), theirs.size());
  }
  for (const auto& [step, by_generation] : ours) {
    const auto other = theirs.find(step);
    if (other == theirs.end()) continue;
    const StepRecord& a = *by_generation.rbegin()->second.front();
    const StepRecord& b = *other->second.rbegin()->second.front();
    if (std::bit_cast<std::uint64_t>(a.loss) != std::bit_cast<std::uint64_t>(b.loss)) {
      violations.Add("the loss of step {} is {}, undisturbed {}", step, a.loss, b.loss);
    }
    if (a.digest != b.digest) {
      violations.Add("the gradient of step {} is {}, undisturbed {}", step, a.digest, b.digest);
    }
  }
  const std::string digest = FinalDigestOf(facts);
  if (digest.empty() || digest != FinalDigestOf(undisturbed)) {
    violations.Add("final weights {}, undisturbed {}", digest, FinalDigestOf(undisturbed));
  }
  return violations.Close("weights_equal_undisturbed",
                          fmt::format("final weights, and losses and gradients of all {} steps, "
                                      "are bitwise those of an undisturbed run",
                                      ours.size()));
}

Finding CheckSurvivors(const RunFacts& facts) {
  Violations violations;
  std::vector<std::string> names;
  for (const SurvivorFact& fact : facts.survivors) {
    names.push_back(fmt::format("{} pid {}", fact.worker, fact.pid_before));
    if (fact.pid_after != fact.pid_before) {
      violations.Add("{} was process {} and is {} now", fact.worker, fact.pid_before,
                     fact.pid_after);
    } else if (!fact.ticks_before || !fact.ticks_after) {
      violations.Add("{}: process {} is not in the process table", fact.worker, fact.pid_before);
    } else if (*fact.ticks_before != *fact.ticks_after) {
      violations.Add("{}: pid {} is another process now", fact.worker, fact.pid_before);
    }
  }
  for (const SurvivorFact& fact : facts.survivors) {
    for (const StepRecord& record : facts.records) {
      if (record.worker == fact.worker && record.pid != fact.pid_before) {
        violations.Add("{} committed step {} as process {}, not {}", fact.worker, record.step,
                       record.pid, fact.pid_before);
        break;
      }
    }
  }
  if (facts.survivors.empty()) violations.Add("there was no survivor");
  return violations.Close("survivor_pids_unchanged",
                          fmt::format("the same processes all along: {}", fmt::join(names, ", ")));
}

Finding CheckLoss(const RunFacts& facts) {
  Violations violations;
  const std::vector<double> losses = LossesOf(facts);
  if (losses.size() < 2) {
    violations.Add("only {} steps", losses.size());
    return violations.Close("loss_fell", "");
  }
  const std::size_t part = std::max<std::size_t>(1, losses.size() / 10);
  const double before = MeanOf(losses, 0, part);
  const double after = MeanOf(losses, losses.size() - part, losses.size());
  if (!(after < before) || !std::isfinite(after)) {
    violations.Add("loss {:.4f} at the start, {:.4f} at the end", before, after);
  }
  return violations.Close("loss_fell", fmt::format("loss {:.4f} over the first {} steps, {:.4f} "
                                                   "over the last {}",
                                                   before, part, after, part));
}

std::string FinalDigestOf(const RunFacts& facts) {
  const auto found = std::find_if(facts.records.begin(), facts.records.end(),
                                  [](const StepRecord& record) { return record.final; });
  return found == facts.records.end() ? "" : found->digest;
}

std::vector<double> LossesOf(const RunFacts& facts) {
  std::vector<double> losses;
  for (const auto& [step, by_generation] : StandingOf(facts)) {
    losses.push_back(by_generation.rbegin()->second.front()->loss);
  }
  return losses;
}

}  // namespace muster::chaos
