#include "chaos/sim/checkers/durable_decisions.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster::sim {

namespace {

constexpr std::size_t kGenerationsKept = 16;

bool Knows(const std::vector<CheckpointEntry>& checkpoints, const CheckpointKey& key,
           CheckpointState at_least) {
  return std::ranges::any_of(checkpoints, [&](const CheckpointEntry& entry) {
    return entry.record.key == key && entry.state >= at_least;
  });
}

}  // namespace

void DurableDecisions::OnAssign(const GenerationRecord& record, Verdict& verdict) {
  const std::pair key{record.lineage, record.generation};
  const auto [it, fresh] = told_.try_emplace(key, record);
  if (!fresh && it->second != record) {
    verdict.Violate("S6", fmt::format("two different records of generation {} were sent",
                                      record.generation.value()));
  }
  if (told_.size() > kGenerationsKept) told_.erase(told_.begin());
}

void DurableDecisions::OnSend(const Message& message, const JobRecord* stored,
                              const std::vector<CheckpointEntry>& checkpoints, Verdict& verdict) {
  const auto demand = [&](bool durable, const std::string& what) {
    if (!durable) verdict.Violate("S6", what + " was sent before it was durable");
  };
  if (const auto* assign = std::get_if<Assign>(&message)) {
    const GenerationRecord& record = *assign->record;
    demand(stored != nullptr && stored->latest && stored->highest >= record.generation &&
               stored->latest->generation >= record.generation,
           fmt::format("the record of generation {}", record.generation.value()));
    OnAssign(record, verdict);
  }
  if (const auto* start = std::get_if<Start>(&message)) {
    demand(stored != nullptr && stored->started && stored->started->generation >= start->generation,
           fmt::format("the start of generation {}", start->generation.value()));
  }
  if (const auto* announced = std::get_if<CheckpointAnnounced>(&message)) {
    demand(Knows(checkpoints, announced->key, CheckpointState::kAnnounced),
           fmt::format("the checkpoint of step {}", announced->key.step.value()));
  }
  if (const auto* manifest = std::get_if<WriteManifest>(&message)) {
    demand(Knows(checkpoints, manifest->record.key, CheckpointState::kComplete),
           fmt::format("the order for the manifest of step {}", manifest->record.key.step.value()));
  }
  if (const auto* removal = std::get_if<RemoveCheckpoint>(&message)) {
    // It may be dropped already: what one batch made durable is sent one after the other. And an
    // answer to an earlier order that it is pinned may have been made durable with this one.
    const bool pinned = std::ranges::any_of(checkpoints, [&](const CheckpointEntry& entry) {
      return entry.record.key == removal->key && entry.pinned;
    });
    demand(pinned || !Knows(checkpoints, removal->key, CheckpointState::kComplete) ||
               Knows(checkpoints, removal->key, CheckpointState::kDeleting),
           fmt::format("the removal of the checkpoint of step {}", removal->key.step.value()));
  }
  if (const auto* ended = std::get_if<muster::Ended>(&message); ended != nullptr && !ended->left) {
    demand(stored != nullptr && stored->end.has_value(), "the end of the job");
  }
}

}  // namespace muster::sim
