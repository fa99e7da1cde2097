#include "coordinator/server/job_json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "protocol/codec.h"
#include "protocol/codec_json.h"
#include "protocol/transport/steady_clock.h"

namespace muster::coordinator {
namespace {

using Json = nlohmann::json;

// 10 µs are the most that this is worth, and short numbers are read more easily.
double Rounded(double millis) { return std::round(millis * 100) / 100; }

// The spec under the names that it has in messages and in the store, with the tensors as numbers:
// there can be a hundred thousand of them.
Json SpecJson(const JobSpec& spec) {
  JobRecord record;
  record.spec = spec;
  record.spec.tensors.clear();
  const Result<Json> parsed = codec::ParseJson(EncodeJobRecord(record), kMaxJsonDepth);
  Json json = parsed.ok() ? parsed->value("spec", Json::object()) : Json::object();
  json["tensors"] = spec.tensors.size();
  return json;
}

Json WorkerJson(const WorkerView& worker) {
  return Json{{"worker", worker.member.worker.value()},
              {"incarnation", ToHex(worker.member.incarnation.value())},
              {"node", worker.node.value()},
              {"pid", worker.pid},
              {"address", worker.address},
              {"role", worker.role},
              {"state", worker.state},
              {"rank", worker.rank.value()},
              {"connected", worker.connected},
              {"last_heard_ms", Rounded(worker.last_heard.ToMillis())},
              {"committed", worker.committed.value()},
              {"stage", NameOf(worker.stage)},
              {"phase", worker.phase},
              {"note", worker.note}};
}

Json CheckpointJson(const CheckpointView& checkpoint) {
  return Json{{"step", checkpoint.key.step.value()},
              {"generation", checkpoint.key.generation.value()},
              {"state", NameOf(checkpoint.state)},
              {"bytes", checkpoint.bytes},
              {"world_size", checkpoint.world_size},
              {"directory", checkpoint.directory},
              {"note", checkpoint.note}};
}

Json BlameJson(const Blame& blame) {
  return Json{{"worker", blame.member.worker.value()},
              {"incarnation", ToHex(blame.member.incarnation.value())},
              {"cause", NameOf(blame.cause)},
              {"evidence", blame.evidence}};
}

}  // namespace

ClockPair ReadClocks() { return {MonotonicNow(), UnixMillisNow()}; }

Json IncidentJson(const Incident& incident, const ClockPair& clocks) {
  Json blamed = Json::array();
  for (const Blame& blame : incident.blamed) blamed.push_back(BlameJson(blame));
  return Json{{"number", incident.number},
              {"cause", NameOf(incident.cause)},
              {"from", incident.from.value()},
              {"to", incident.to.value()},
              {"world_before", incident.world_before},
              {"world_after", incident.world_after},
              {"noticed_unix_ms", Rounded(clocks.UnixMillis(incident.noticed))},
              {"blamed", std::move(blamed)},
              {"phases_ms",
               {{"abort", Rounded(incident.abort.ToMillis())},
                {"ready", Rounded(incident.ready.ToMillis())},
                {"form", Rounded(incident.form.ToMillis())},
                {"restore", Rounded(incident.restore.ToMillis())},
                {"first_step", Rounded(incident.first_step.ToMillis())}}},
              {"restored_from", NameOf(incident.restored_from)},
              {"restored_step", incident.restored_step.value()},
              {"steps_redone", incident.steps_redone},
              {"attempts", incident.attempts},
              {"complete", incident.complete}};
}

Json SummaryJson(const JobView& view) {
  return Json{{"job", view.job.value()},
              {"phase", NameOf(view.phase)},
              {"generation", view.generation.value()},
              {"world_size", view.world_size},
              {"committed", view.committed.value()},
              {"loss", view.loss},
              {"waiting_for", view.waiting_for},
              {"workers", view.workers.size()}};
}

Json JobJson(const JobView& view, const ClockPair& clocks) {
  Json json = SummaryJson(view);
  json["lineage"] = ToHex(view.lineage.value());
  json["spec"] = SpecJson(view.spec);
  json["saves_aborted"] = view.saves_aborted;
  json["reforms"] = view.reforms;
  Json& workers = json["workers"] = Json::array();
  for (const WorkerView& worker : view.workers) workers.push_back(WorkerJson(worker));
  Json& checkpoints = json["checkpoints"] = Json::array();
  for (const CheckpointView& entry : view.checkpoints) checkpoints.push_back(CheckpointJson(entry));
  Json& incidents = json["incidents"] = Json::array();
  for (const Incident& incident : view.incidents) {
    incidents.push_back(IncidentJson(incident, clocks));
  }
  if (view.end) {
    json["end"] = Json{{"kind", NameOf(view.end->kind)},
                       {"step", view.end->step.value()},
                       {"reason", view.end->reason}};
  }
  return json;
}

}  // namespace muster::coordinator
