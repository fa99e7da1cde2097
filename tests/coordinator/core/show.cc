#include "tests/coordinator/core/show.h"

#include <fmt/format.h>

#include <vector>

namespace muster::coordinator {

namespace {

const char* Name(Cause cause) {
  switch (cause) {
    case Cause::kFirstFormation: return "first";
    case Cause::kGrowth: return "growth";
    case Cause::kLeave: return "leave";
    case Cause::kProcessDied: return "died";
    case Cause::kConnectionLost: return "connection";
    case Cause::kLeaseExpired: return "lease";
    case Cause::kOperationFailed: return "operation";
    case Cause::kNoProgress: return "no-progress";
    case Cause::kFormingFailed: return "forming";
    case Cause::kCoordinatorRestart: return "restart";
  }
  return "?";
}

const char* Name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kNone: return "none";
    case Outcome::kApply: return "apply";
    case Outcome::kSkip: return "skip";
    case Outcome::kVoid: return "void";
  }
  return "?";
}

const char* Name(CheckpointState state) {
  switch (state) {
    case CheckpointState::kComplete: return "complete";
    case CheckpointState::kAnnounced: return "announced";
    case CheckpointState::kVoid: return "void";
    case CheckpointState::kDeleting: return "deleting";
  }
  return "?";
}

std::string Text(const Wishes& wishes) {
  return fmt::format("{}{}", wishes.checkpoint ? "+ckpt" : "", wishes.reform ? "+reform" : "");
}

std::string Text(const Restore& restore) {
  switch (restore.source) {
    case RestoreSource::kInitial: return fmt::format("initial@{}", restore.step.value());
    case RestoreSource::kLive:
      return fmt::format("live@{} of g{}/{}", restore.step.value(), restore.base.value(),
                         restore.base_world_size);
    case RestoreSource::kCheckpoint: return Show(restore.checkpoint);
  }
  return "?";
}

// "g2 [a0<0 d1<-]": d has rank 1 and brings no state.
std::string Text(const GenerationRecord& record) {
  std::string text = fmt::format("g{} [", record.generation.value());
  for (const MemberEntry& entry : record.members) {
    const int from = entry.previous_rank.value();
    text += fmt::format("{}{}:{}<{}", entry.rank.value() == 0 ? "" : " ", Show(entry.member),
                        entry.rank.value(), from < 0 ? "-" : std::to_string(from));
  }
  text += "] from " + Text(record.restore);
  const StepDecision& decision = record.decision;
  if (decision.outcome != Outcome::kNone) {
    text += fmt::format(", g{} step {}: {}{}", decision.generation.value(), decision.step.value(),
                        Name(decision.outcome), Text(decision.wishes));
  }
  return text;
}

std::string Text(const Persist& persist) {
  if (const auto* put = std::get_if<PutJob>(&persist)) return Show(put->record);
  if (const auto* put = std::get_if<PutCheckpoint>(&persist)) {
    const CheckpointEntry& entry = put->entry;
    return fmt::format("checkpoint {} {}{}", Show(entry.record.key), Name(entry.state),
                       entry.strikes > 0 ? fmt::format(", strikes {}", entry.strikes) : "");
  }
  return "drop checkpoint " + Show(std::get<DropCheckpoint>(persist).key);
}

}  // namespace

std::string Show(const Member& member) {
  if (member.incarnation.value() == 1) return member.worker.value();
  return fmt::format("{}.{}", member.worker.value(), member.incarnation.value());
}

std::string Show(const CheckpointKey& key) {
  return fmt::format("s{}-g{}", key.step.value(), key.generation.value());
}

std::string Show(const JobRecord& record) {
  std::string text = fmt::format("job highest g{}", record.highest.value());
  if (record.started) text += fmt::format(", started g{}", record.started->generation.value());
  if (record.latest && !record.latest_started) {
    text += fmt::format(", decided g{}", record.latest->generation.value());
  }
  text += fmt::format(", committed {}", record.committed.value());
  for (const Member& member : record.gone) text += ", gone " + Show(member);
  for (const Rollback& rollback : record.rollbacks) {
    text += fmt::format(", void above {} before g{}", rollback.step.value(),
                        rollback.generation.value());
  }
  for (const Place& place : record.drained) {
    text += fmt::format(", drained {}@{}", place.worker.value(), place.node.value());
  }
  if (record.end) {
    text +=
        fmt::format(", {} at {}", record.end->kind == EndKind::kFinished ? "finished" : "failed",
                    record.end->step.value());
  }
  return text;
}

std::string Show(const Message& message) {
  if (std::holds_alternative<Welcome>(message)) return "welcome";
  if (std::holds_alternative<Ack>(message)) return "";
  if (const auto* m = std::get_if<Refused>(&message)) {
    return fmt::format("refused {}", CodeName(m->code));
  }
  if (const auto* m = std::get_if<Interrupt>(&message)) {
    return fmt::format("interrupt g{} {}", m->generation.value(), Name(m->cause));
  }
  if (const auto* m = std::get_if<Assign>(&message)) return "assign " + Text(*m->record);
  if (const auto* m = std::get_if<GroupId>(&message)) {
    return fmt::format("group id {} of g{}", m->id, m->generation.value());
  }
  if (const auto* m = std::get_if<Start>(&message)) {
    return fmt::format("start g{}", m->generation.value());
  }
  if (const auto* m = std::get_if<Wish>(&message)) {
    return fmt::format("wish g{} {}", m->generation.value(), Text(m->wishes));
  }
  if (const auto* m = std::get_if<WriteManifest>(&message)) {
    return "write manifest " + Show(m->record.key);
  }
  if (const auto* m = std::get_if<CheckpointAnnounced>(&message)) {
    return "announced " + Show(m->key);
  }
  if (const auto* m = std::get_if<CheckpointAborted>(&message)) return "aborted " + Show(m->key);
  if (const auto* m = std::get_if<RemoveCheckpoint>(&message)) return "remove " + Show(m->key);
  if (const auto* m = std::get_if<SweepCheckpoints>(&message)) {
    std::string text = fmt::format("sweep before s{}-g{}", m->step.value(), m->generation.value());
    for (const CheckpointKey& key : m->known) text += ", not " + Show(key);
    return text;
  }
  if (const auto* m = std::get_if<Ended>(&message)) {
    const char* kind = m->end.kind == EndKind::kFinished ? "finished" : "failed";
    return fmt::format("ended {} at {}", m->left ? "for it alone" : kind, m->end.step.value());
  }
  return fmt::format("message {}", message.index());
}

std::string Show(const Effects& effects, const NameOfSession& name) {
  std::string text;
  for (const Persist& persist : effects.persist) text += "persist " + Text(persist) + "\n";
  std::string to;
  std::string last;
  const auto flush = [&] {
    if (!to.empty()) text += to + " <- " + last + "\n";
    to.clear();
  };
  for (const Send& send : effects.sends) {
    const std::string line = Show(send.message);
    if (line.empty()) continue;
    if (line != last) flush();
    last = line;
    to += (to.empty() ? "" : " ") + name(send.to);
  }
  flush();
  for (const SessionId session : effects.closes) text += "close " + name(session) + "\n";
  std::string events;
  for (const Event& event : effects.events) {
    events += (events.empty() ? "" : ", ") + std::string(NameOf(event.kind));
    if (event.member) events += " " + Show(*event.member);
  }
  if (!events.empty()) text += "events " + events + "\n";
  return text;
}

std::string Show(const JobView& view) {
  std::string text = fmt::format("{} g{} of {}, committed {}, reforms {}{}\n", NameOf(view.phase),
                                 view.generation.value(), view.world_size, view.committed.value(),
                                 view.reforms, view.waiting_for.empty() ? "" : ", waits");
  for (const WorkerView& worker : view.workers) {
    text += fmt::format("  {} {} {}{}", Show(worker.member), worker.role, worker.state,
                        worker.connected ? "" : " away");
    if (worker.rank.value() >= 0) text += fmt::format(" rank {}", worker.rank.value());
    text += fmt::format(" at {}{}{}\n", worker.committed.value(), worker.note.empty() ? "" : ", ",
                        worker.note);
  }
  for (const CheckpointView& checkpoint : view.checkpoints) {
    text += fmt::format("  checkpoint {} {}{}{}\n", Show(checkpoint.key), Name(checkpoint.state),
                        checkpoint.note.empty() ? "" : ", ", checkpoint.note);
  }
  for (const Incident& incident : view.incidents) {
    text += fmt::format("  incident {} {}: g{} of {} to g{} of {}, attempts {}, {}",
                        incident.number, Name(incident.cause), incident.from.value(),
                        incident.world_before, incident.to.value(), incident.world_after,
                        incident.attempts, incident.complete ? "complete" : "incomplete");
    if (incident.steps_redone > 0) text += fmt::format(", {} steps redone", incident.steps_redone);
    for (const Blame& blame : incident.blamed) {
      text += fmt::format(", blames {} ({})", Show(blame.member), Name(blame.cause));
    }
    text += "\n";
  }
  return text;
}

}  // namespace muster::coordinator
