#include "chaos/sim/checkers/chain.h"

#include <algorithm>

#include "protocol/prng.h"

namespace muster::sim {

std::uint64_t NextState(std::uint64_t state, Step step) {
  return Mix64(state ^ Mix64(static_cast<std::uint64_t>(step.value())));
}

const Chain::Line& Chain::Of(Lineage lineage) const {
  static const Line kEmpty;
  const auto it = lines_.find(lineage);
  return it == lines_.end() ? kEmpty : it->second;
}

std::optional<std::uint64_t> Chain::StateAt(Lineage lineage, Step step) const {
  if (step == Step()) return 0;
  const Link* link = At(lineage, step);
  if (link == nullptr) return std::nullopt;
  return link->state;
}

const Chain::Link* Chain::At(Lineage lineage, Step step) const {
  const Line& line = Of(lineage);
  const auto it = line.links.find(step);
  return it == line.links.end() ? nullptr : &it->second;
}

Generation Chain::newest(Lineage lineage) const {
  const Line& line = Of(lineage);
  return line.links.empty() ? Generation() : line.links.rbegin()->second.generation;
}

Step Chain::last(Lineage lineage) const {
  const Line& line = Of(lineage);
  return line.links.empty() ? Step() : line.links.rbegin()->first;
}

bool Chain::Add(Lineage lineage, Generation generation, Step step, Outcome outcome,
                std::uint64_t before) {
  const std::uint64_t after = outcome == Outcome::kApply ? NextState(before, step) : before;
  grown_ = lineage;
  return lines_[lineage].links.try_emplace(step, Link{generation, outcome, after}).second &&
         lineage == record_.lineage;
}

bool Chain::Voided(Lineage lineage, Generation generation, Step step) const {
  return std::ranges::any_of(Of(lineage).rollbacks, [&](const Rollback& rollback) {
    return generation < rollback.generation && step > rollback.step;
  });
}

void Chain::OnSaved(const CheckpointRecord& record) {
  const Links& links = Of(record.lineage).links;
  saved_[{record.lineage, record.key}] = Links(links.begin(), links.upper_bound(record.key.step));
}

void Chain::OnFound(const CheckpointRecord& record) {
  const auto saved = saved_.find({record.lineage, record.key});
  if (saved != saved_.end()) found_[record.key] = saved->second;
}

void Chain::OnRecord(const JobRecord& record) {
  if (!lines_.contains(record.lineage)) {
    // A fresh lineage of the same job goes on from where the old one was; without a generation it
    // is a job that begins.
    const bool begins = !record.latest && !record.started;
    const Lineage before = record.started ? record.started->lineage : grown_;
    Line line = begins ? Line() : Of(before);
    // What the old lineage did above that is void, in generations that nobody has heard of too.
    if (!record.rollbacks.empty()) {
      line.links.erase(line.links.upper_bound(record.rollbacks.back().step), line.links.end());
    }
    lines_[record.lineage] = std::move(line);
  }
  Line& line = lines_[record.lineage];
  // An older generation is taken over: the rollback that followed it is undone, as if never
  // decided.
  if (store_lost_ && record.latest) {
    store_lost_ = false;
    const bool undone =
        !line.rollbacks.empty() && record.latest->generation < line.rollbacks.back().generation;
    if (undone) {
      line.links.merge(line.cut);
      line.rollbacks.pop_back();
    }
  }
  for (const Rollback& rollback : record.rollbacks) {
    if (std::ranges::find(line.rollbacks, rollback) != line.rollbacks.end()) continue;
    line.rollbacks.push_back(rollback);
    ++rollbacks_seen_;
    // Steps of its own and later generations stand.
    line.cut.clear();
    std::erase_if(line.links, [&](const auto& entry) {
      const bool voided =
          entry.first > rollback.step && entry.second.generation < rollback.generation;
      if (voided) line.cut.insert(entry);
      return voided;
    });
  }
  record_ = record;
  if (!record.latest) return;
  const Restore& restore = record.latest->restore;
  const auto found = found_.find(restore.checkpoint);
  if (restore.source == RestoreSource::kCheckpoint && found != found_.end()) {
    line.links.erase(line.links.begin(), line.links.upper_bound(restore.step));
    line.links.insert(found->second.begin(), found->second.end());
  }
  const StepDecision& decision = record.latest->decision;
  const bool committed = decision.outcome == Outcome::kApply || decision.outcome == Outcome::kSkip;
  const auto before = StateAt(record.lineage, Step(decision.step.value() - 1));
  if (committed && before && !Voided(record.lineage, decision.generation, decision.step)) {
    Add(record.lineage, decision.generation, decision.step, decision.outcome, *before);
  }
}

}  // namespace muster::sim
