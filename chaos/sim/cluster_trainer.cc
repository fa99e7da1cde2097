// The model of a training loop: the calls of worker/client in the order in which it makes them.
#include <fmt/format.h>

#include <algorithm>

#include "chaos/sim/cluster.h"
#include "protocol/mutants.h"

namespace muster::sim {

// Looks whether what the training thread waits for has come.
void Cluster::Pump(Process& p) {
  if (!p.alive || p.paused) return;
  if (p.at == At::kBoundary) BeginStep(p);
  if (p.at == At::kDeciding) Decide(p);
}

void Cluster::BeginStep(Process& p) {
  p.at = At::kBoundary;
  worker::Session& session = *p.session;
  if (session.snapshot_due()) Snapshot(p);
  switch (session.Next(events_.now())) {
    case worker::Directive::kForm: return Form(p);
    case worker::Directive::kTrain: return Train(p);
    case worker::Directive::kWait: return;
    case worker::Directive::kFinish: return Tell(p, worker::StepsDone{});
    case worker::Directive::kEnd:
      p.at = At::kGone;  // left as planned: the process is started again later
      Trace(fmt::format("w{} ends: {}", p.index, session.status().ToString()));
      KillProcess(p);
      events_.After(Duration::Millis(300), [this, &p] {
        if (!p.alive) StartProcess(p);
      });
      return;
  }
}

void Cluster::Form(Process& p) {
  p.at = At::kForming;
  const GenerationRecord record = *p.session->assigned();
  data_.Enter(record, p.session->member(), "form", [this, &p, record](Ended how, Rank peer) {
    if (how == Ended::kDone) {
      Later(p, Delay(), [this, &p, record] { Formed(p, record); });
      return;
    }
    p.at = At::kBoundary;
    if (how == Ended::kFailed) {
      FormFailed failed{record.generation, Code::kUnavailable, "peer lost", peer, {}};
      Tell(p, worker::FormBroke{failed});
    }
    Pump(p);
  });
}

// Every member is there: take the state from where the record says.
void Cluster::Formed(Process& p, const GenerationRecord& record) {
  p.at = At::kBoundary;
  const auto* assigned = p.session->assigned();
  if (assigned == nullptr || assigned->generation != record.generation) return BeginStep(p);
  const Restore& restore = record.restore;
  std::uint64_t state = p.state;
  if (restore.source == RestoreSource::kInitial) state = 0;
  if (restore.source == RestoreSource::kLive) {
    for (const MemberEntry& entry : record.members) {
      if (entry.previous_rank.value() < 0) continue;
      Process* holder = ByMember(entry.member);
      if (holder == nullptr) continue;  // its death will be noticed
      state = holder->state;
      if (holder->state_step != restore.step) {
        ledger_.Violate(fmt::format("w{} is named as holder of step {} but holds {}", holder->index,
                                    restore.step.value(), holder->state_step.value()));
      }
    }
  }
  if (restore.source == RestoreSource::kCheckpoint) {
    for (std::int32_t rank = 0;; ++rank) {
      const auto it = shards_.find({restore.checkpoint, rank});
      if (it == shards_.end()) {
        if (rank == 0) ledger_.Violate("S5: a checkpoint without files is restored from");
        break;
      }
      state = it->second;
    }
  }
  p.state = state;
  p.state_step = restore.step;
  ledger_.OnRestored(p.session->member(), restore.step, state);
  Tell(p, worker::FormedHere{record.generation, 1, 1, 0});
  BeginStep(p);
}

void Cluster::Train(Process& p) {
  p.at = At::kComputing;
  const GenerationRecord record = *p.session->started_record();
  const Step step = p.session->committed().Next();
  if (p.state_step != p.session->committed()) {
    ledger_.Violate(fmt::format("w{} takes step {} on the state of step {}", p.index, step.value(),
                                p.state_step.value()));
  }
  Tell(p, worker::StepOpened{});
  const Duration compute =
      options_.step / 2 + Duration::Nanos(static_cast<std::int64_t>(
                              prng_.Below(static_cast<std::uint64_t>(options_.step.nanos()))));
  Later(p, compute, [this, &p, record, step] {
    Tell(p, worker::ReduceBegun{});
    Reduce(p, record, step);
  });
}

void Cluster::Broke(Process& p, const GenerationRecord& record, Step step, Rank peer) {
  Tell(p, worker::OperationBroke{record.generation, step, Code::kUnavailable, "peer lost", peer});
}

void Cluster::Reduce(Process& p, const GenerationRecord& record, Step step) {
  if (!p.session->Running(record.generation)) {  // aborted already: the call fails at once
    Tell(p, worker::AtBoundary{});
    return BeginStep(p);
  }
  p.at = At::kReducing;
  data_.Enter(record, p.session->member(), fmt::format("reduce {}", step.value()),
              [this, &p, record, step](Ended how, Rank peer) {
                if (how == Ended::kDone) return Vote(p, record, step);
                if (how == Ended::kFailed) Broke(p, record, step, peer);
                p.at = At::kBoundary;
                Tell(p, worker::AtBoundary{});
                Pump(p);
              });
}

void Cluster::Vote(Process& p, const GenerationRecord& record, Step step) {
  const worker::Prepare prepare{step, step.value() % 13 == 0 ? Outcome::kSkip : Outcome::kApply,
                                p.session->WishesFor(step), 1.0};
  Tell(p, prepare);
  if (!p.session->prepared()) {
    p.at = At::kDeciding;
    return Decide(p);
  }
  p.at = At::kVoting;
  const std::string name = fmt::format("vote {}", step.value());
  // The agreed wishes are the OR of all: kept beside the operation, as the votes' bytes would be.
  auto& wishes = wishes_[{record.generation, step}];
  wishes.checkpoint = wishes.checkpoint || prepare.wishes.checkpoint;
  wishes.reform = wishes.reform || prepare.wishes.reform;
  data_.Enter(record, p.session->member(), name, [this, &p, record, step](Ended how, Rank peer) {
    if (how == Ended::kDone) Tell(p, worker::VoteDone{step, wishes_[{record.generation, step}]});
    if (how == Ended::kFailed) Broke(p, record, step, peer);
    p.at = At::kDeciding;
    Pump(p);
  });
}

void Cluster::Decide(Process& p) {
  const auto outcome = p.session->Decided(events_.now());
  if (!outcome) return;
  const Step step = p.session->committed();
  if (*outcome == Outcome::kApply || *outcome == Outcome::kSkip) {
    const GenerationRecord& record = *p.session->started_record();
    ledger_.OnOutcome(p.session->member(), record.generation, step, *outcome, p.state);
    Trace(fmt::format("w{} commits {} in {}", p.index, step.value(), record.generation.value()));
    if (*outcome == Outcome::kApply) p.state = NextState(p.state, step);
    p.state_step = step;
    Tell(p, worker::OutcomeTaken{});
    p.at = At::kApplying;
    Later(p, Duration::Micros(300), [this, &p] {
      p.at = At::kBoundary;
      Tell(p, worker::AtBoundary{});
      BeginStep(p);
    });
    return;
  }
  Tell(p, worker::OutcomeTaken{});
  p.at = At::kBoundary;
  Tell(p, worker::AtBoundary{});
  BeginStep(p);
}

void Cluster::Snapshot(Process& p) {
  const CheckpointKey key = *p.session->snapshot_due();
  const GenerationRecord record = *p.session->started_record();
  const Rank rank = p.session->RankIn(record);
  const std::uint64_t state = p.state;
  if (p.state_step != key.step) ledger_.Violate("S5: a snapshot of another step");
  Tell(p, worker::SnapshotTaken{});
  Later(p, Duration::Millis(30), [this, &p, key, record, rank, state] {
    shards_[{key, rank.value()}] = Planted(Mutant::kSnapshotLate) ? p.state : state;
    ShardWritten written;
    written.key = key;
    written.lineage = record.lineage;
    written.world_size = record.world_size();
    written.file = {fmt::format("r{:05}", rank.value()), 256, 1, rank};
    Tell(p, worker::Report{written});
  });
}

void Cluster::HandleSaver(Process& p, const worker::Effects& effects) {
  for (const WriteManifest& manifest : effects.manifests) {
    Later(p, Duration::Millis(5), [this, &p, key = manifest.record.key] {
      Tell(p, worker::Report{ManifestWritten{key, 7, Code::kOk, ""}});
    });
  }
  for (const RemoveCheckpoint& removal : effects.removals) {
    Later(p, Duration::Millis(5), [this, &p, key = removal.key] {
      std::erase_if(shards_, [&](const auto& entry) { return entry.first.first == key; });
      Tell(p, worker::Report{CheckpointRemoved{key}});
    });
  }
}

}  // namespace muster::sim
