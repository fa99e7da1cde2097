// The worker's side of the protocol, as small as it can be (worker/core/session.cc is the real
// one).
#include <fmt/format.h>

#include <algorithm>

#include "tests/coordinator/core/mini_world.h"
#include "tests/coordinator/core/show.h"

namespace muster::coordinator {

void MiniWorld::Say(Worker& worker, Message message) {
  if (worker.session == SessionId() || worker.dead || worker.paused) return;
  driver_.Receive(worker.session, std::move(message));
}

void MiniWorld::Act(Worker& worker) {
  if (worker.dead || worker.paused || worker.gone) return;
  for (const Message& message : std::exchange(worker.inbox, {})) {
    worker.touched = driver_.now();
    Hear(worker, message);
  }
  if (worker.delay > 0) {
    --worker.delay;
    return;
  }
  if (worker.session == SessionId()) {
    SayHello(worker);
    return;
  }
  if (worker.forming != Generation() && !worker.ready_sent) SayReady(worker);
  if (worker.assigned && !worker.formed) Form(worker);
  if (prng_.Chance(1, 3)) {
    for (const Message& report : std::exchange(worker.reports, {})) Say(worker, report);
  }
  if (pulses_ % 4 == 0) {
    Heartbeat beat;
    beat.generation = worker.started ? worker.started->generation : Generation();
    beat.committed = Step(static_cast<std::int64_t>(worker.history.size()));
    beat.stage = worker.assigned ? Stage::kForming : Stage::kReduce;
    Say(worker, beat);
  }
}

void MiniWorld::SayHello(Worker& worker) {
  worker.session = SessionId(++next_session_);
  Hello hello;
  hello.job = JobName("job");
  hello.member = worker.member;
  hello.node = NodeName("n1");
  hello.pid = worker.pid;
  hello.able = true;
  hello.spec = spec_;
  hello.highest = worker.highest;
  if (worker.last_record) {
    Attachment& attachment = hello.attachment.emplace();
    attachment.record = *worker.last_record;
    attachment.started =
        worker.started && worker.started->generation == worker.last_record->generation;
    attachment.committed = Step(static_cast<std::int64_t>(worker.history.size()));
    attachment.aborted_for = worker.ready_sent ? worker.forming : Generation();
    attachment.stopped = worker.stopped;
  }
  Say(worker, hello);
  // What may have been lost with the last connection is said again.
  if (worker.ready_sent && worker.forming != Generation() && !worker.assigned) SayReady(worker);
  if (worker.assigned && worker.formed) Say(worker, Formed{worker.assigned->generation, 1, 1, 0});
  if (worker.broken && worker.forming == Generation() && worker.started) {
    Say(worker,
        OperationFailed{worker.started->generation, Step(), Code::kUnavailable, "again", Rank(-1)});
  }
  if (worker.leaving) Say(worker, Leave{"asked", false, {}});
}

void MiniWorld::SayReady(Worker& worker) {
  Ready ready;
  ready.forming = worker.forming;
  if (worker.started) {
    ready.generation = worker.started->generation;
    ready.lineage = worker.started->lineage;
  }
  ready.committed = Step(static_cast<std::int64_t>(worker.history.size()));
  ready.wishes = worker.agreed;
  if (worker.open) {
    ready.open =
        OpenStep{ready.committed.Next(), worker.open->prepared,
                 worker.open->prepared ? Outcome::kApply : Outcome::kNone, worker.open->vote};
  }
  ready.holds_state = worker.holds;
  worker.ready_sent = true;
  Say(worker, ready);
}

void MiniWorld::HearRefused(Worker& worker, const Refused& refused) {
  if (refused.code != Code::kFenced) {
    Violation("an honest worker is refused: " + refused.reason);
    return;
  }
  Worker fresh;
  fresh.member = {worker.member.worker, Incarnation(++next_incarnation_)};
  fresh.pid = worker.pid;
  fresh.session = worker.session;  // closed by the coordinator
  fresh.highest = worker.highest;
  fresh.leaving = worker.leaving;
  fresh.touched = driver_.now();
  fresh.delay = 1;
  worker = std::move(fresh);
}

void MiniWorld::Hear(Worker& worker, const Message& message) {
  if (const auto* refused = std::get_if<Refused>(&message)) HearRefused(worker, *refused);
  if (const auto* interrupt = std::get_if<Interrupt>(&message)) {
    if (interrupt->generation == worker.forming && worker.ready_sent && !worker.assigned) {
      SayReady(worker);
    }
    if (interrupt->generation <= worker.highest) return;
    worker.highest = worker.forming = interrupt->generation;
    worker.ready_sent = worker.formed = worker.initial_pending = false;
    worker.assigned.reset();
    worker.delay = prng_.Chance(1, 10) ? static_cast<int>(prng_.Below(30)) : 0;
  }
  if (const auto* assign = std::get_if<Assign>(&message)) HearAssign(worker, *assign->record);
  if (const auto* start = std::get_if<Start>(&message)) {
    if (worker.assigned && worker.formed && worker.assigned->generation == start->generation) {
      HearStart(worker);
    }
  }
  if (const auto* wish = std::get_if<Wish>(&message)) {
    if (worker.started && worker.started->generation == wish->generation) {
      worker.wished.checkpoint = worker.wished.checkpoint || wish->wishes.checkpoint;
      worker.wished.reform = worker.wished.reform || wish->wishes.reform;
    }
  }
  if (const auto* order = std::get_if<WriteManifest>(&message)) {
    ManifestWritten written;
    written.key = order->record.key;
    written.digest = 1;
    if (prng_.Chance(1, 20)) written.code = Code::kInternal;
    worker.reports.push_back(written);
  }
  if (const auto* announced = std::get_if<CheckpointAnnounced>(&message)) {
    if (announced->key.step == Step()) worker.initial_pending = false;
  }
  if (const auto* aborted = std::get_if<CheckpointAborted>(&message)) {
    // The real worker gives up here; this one tries again with the next generation.
    if (aborted->key.step == Step() && worker.initial_pending && worker.started) {
      worker.initial_pending = false;
      worker.broken = true;
      Say(worker, OperationFailed{worker.started->generation, Step(), Code::kInternal, "no step 0",
                                  Rank(-1)});
    }
  }
  if (const auto* remove = std::get_if<RemoveCheckpoint>(&message)) {
    saved_.erase(remove->key);
    worker.reports.push_back(CheckpointRemoved{remove->key});
  }
  if (const auto* ended = std::get_if<Ended>(&message)) {
    if (!ended->left) Violation("the job has ended: " + ended->end.reason);
    worker.gone = worker.dead = true;
  }
}

void MiniWorld::HearAssign(Worker& worker, const GenerationRecord& record) {
  if (record.generation != worker.forming || !worker.ready_sent || worker.assigned) return;
  const auto self = std::ranges::find(record.members, worker.member, &MemberEntry::member);
  if (self == record.members.end()) {
    Violation("assigned to a generation that it is no member of");
    return;
  }
  const bool live = record.restore.source == RestoreSource::kLive;
  const Step committed(static_cast<std::int64_t>(worker.history.size()));
  if (worker.open) {
    const bool named = record.decision.generation == worker.started->generation &&
                       record.decision.step == committed.Next();
    if (live && worker.holds && record.restore.step >= committed.Next()) {
      if (!worker.open->prepared || (named && record.decision.outcome == Outcome::kVoid)) {
        Violation("the state goes on from a step that was not to be");
      } else {
        Commit(worker, worker.open->token, named ? record.decision.wishes : worker.open->vote);
        Snapshot(worker);
      }
    }
    worker.open.reset();
  }
  if (live && worker.holds && self->previous_rank >= Rank(0) &&
      worker.history.size() != static_cast<std::size_t>(record.restore.step.value())) {
    Violation(fmt::format("{} holds step {}, not step {}", Show(worker.member),
                          worker.history.size(), record.restore.step.value()));
  }
  if (!live && record.restore.step < Step(static_cast<std::int64_t>(worker.history.size()))) {
    worker.history.resize(static_cast<std::size_t>(record.restore.step.value()));
  }
  worker.holds = worker.holds && live && self->previous_rank >= Rank(0);
  worker.assigned = worker.last_record = record;
  worker.delay = prng_.Chance(1, 10) ? static_cast<int>(prng_.Below(30)) : 0;
}

// Formed once all members are at it: the communicators cannot be proved before.
void MiniWorld::Form(Worker& worker) {
  const GenerationRecord& record = *worker.assigned;
  for (const MemberEntry& entry : record.members) {
    const Worker* peer = Find(entry.member);
    if (peer == nullptr || peer->dead) {
      if (!prng_.Chance(1, 4)) return;
      worker.delay = 3;
      Say(worker, FormFailed{record.generation, Code::kUnavailable, "refused", entry.rank, {}});
      return;
    }
    const bool there = peer->assigned && peer->assigned->generation == record.generation;
    const bool started = peer->started && peer->started->generation == record.generation;
    if (!there && !started) return;
  }
  const muster::Restore& restore = record.restore;
  if (kind_.loses_store && restore.source == RestoreSource::kCheckpoint &&
      !saved_.contains(restore.checkpoint)) {
    // The store that knew of its removal is lost.
    worker.delay = 3;
    Say(worker, FormFailed{record.generation, Code::kNotFound, "no such checkpoint", Rank(-1),
                           restore.checkpoint, /*contradicts=*/false, /*reading=*/true});
    return;
  }
  History restored;
  Restore(worker, &restored);
  if (restored.size() != static_cast<std::size_t>(record.restore.step.value())) return;
  worker.next = std::move(restored);
  worker.formed = true;
  Say(worker, Formed{record.generation, 1, 1, 10});
}

void MiniWorld::Restore(Worker& worker, History* restored) {
  const GenerationRecord& record = *worker.assigned;
  const muster::Restore& restore = record.restore;
  if (restore.source == RestoreSource::kCheckpoint) {
    const auto saved = saved_.find(restore.checkpoint);
    if (saved == saved_.end()) {
      Violation("restores from a checkpoint that is not there");
    } else {
      *restored = saved->second;
    }
    return;
  }
  if (restore.source == RestoreSource::kInitial) return;
  std::vector<bool> ranks(static_cast<std::size_t>(restore.base_world_size));
  for (const MemberEntry& entry : record.members) {
    if (entry.previous_rank < Rank(0)) continue;
    ranks[static_cast<std::size_t>(entry.previous_rank.value())] = true;
    const Worker* holder = Find(entry.member);
    if (holder->started && holder->started->generation == record.generation) {
      *restored = holder->history;  // it has swapped already
      continue;
    }
    if (!restored->empty() && *restored != holder->history) {
      Violation("the holders hold different states");
    }
    *restored = holder->history;
  }
  const bool sharded = spec_.tensors[0].sharded();
  if (sharded && std::ranges::find(ranks, false) != ranks.end()) {
    Violation("a shard that nobody holds is taken for live");
  }
  if (std::ranges::find(ranks, true) == ranks.end()) Violation("live state that nobody holds");
}

void MiniWorld::HearStart(Worker& worker) {
  worker.started = std::exchange(worker.assigned, std::nullopt);
  worker.history = std::move(worker.next);
  worker.next.clear();
  worker.forming = Generation();
  worker.formed = worker.ready_sent = worker.broken = worker.stopped = false;
  worker.open.reset();
  worker.wished = worker.agreed = Wishes();
  worker.holds = true;
  if (worker.started->restore.source == RestoreSource::kInitial && spec_.tensors[0].sharded()) {
    worker.initial_pending = true;
    worker.agreed.checkpoint = true;
    Snapshot(worker);
    worker.agreed = Wishes();
  }
}

}  // namespace muster::coordinator
