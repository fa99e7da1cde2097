#include "coordinator/server/event_log.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "coordinator/core/describe.h"
#include "protocol/codec_json.h"
#include "protocol/limits.h"

namespace muster::coordinator {
namespace {

nlohmann::json EventJson(std::int64_t sequence, const Event& event, const ClockPair& clocks) {
  nlohmann::json json{{"seq", sequence},
                      {"unix_ms", std::round(clocks.UnixMillis(event.at) * 100) / 100},
                      {"kind", NameOf(event.kind)},
                      {"generation", event.generation.value()},
                      {"step", event.step.value()},
                      {"detail", event.detail}};
  if (event.member) {
    json["worker"] = event.member->worker.value();
    json["incarnation"] = ToHex(event.member->incarnation.value());
  }
  if (event.incident) json["incident"] = IncidentJson(*event.incident, clocks);
  return json;
}

LogLevel LevelOf(EventKind kind) {
  switch (kind) {
    case EventKind::kWorkerSuspected:
    case EventKind::kWorkerDead:
    case EventKind::kCoolingDown:
    case EventKind::kRolledBack:
    case EventKind::kCheckpointAborted:
    case EventKind::kCheckpointVoid:
    case EventKind::kRefused: return LogLevel::kWarning;
    default: return LogLevel::kInfo;
  }
}

}  // namespace

void EventLog::Add(const Event& event, const ClockPair& clocks, Log* log) {
  // An event may name a job that does not exist (a refused hello): those are logged, not kept, so
  // that strangers cannot fill the memory.
  const bool keep = event.kind != EventKind::kRefused || rings_.contains(event.job);
  if (keep) {
    Ring& ring = rings_[event.job];
    ring.entries.push_back({ring.next, codec::Dump(EventJson(ring.next, event, clocks))});
    ++ring.next;
    if (ring.entries.size() > kMaxEvents) ring.entries.pop_front();
  }
  if (log == nullptr) return;
  const auto number = [](std::int64_t value) { return value == 0 ? "" : fmt::to_string(value); };
  log->Write(LevelOf(event.kind), fmt::format("{}: {}", NameOf(event.kind), event.detail),
             {{"job", event.job.value()},
              {"generation", number(event.generation.value())},
              {"step", number(event.step.value())},
              {"worker", event.member ? event.member->worker.value() : ""},
              {"incarnation", event.member ? ToHex(event.member->incarnation.value()) : ""}});
}

std::string EventLog::Since(const JobName& job, std::int64_t since) const {
  const auto ring = rings_.find(job);
  std::string text = "{\"events\":[";
  std::int64_t next = 1;
  if (ring != rings_.end()) {
    next = ring->second.next;
    const std::int64_t from = since > next ? 0 : since;
    for (const Entry& entry : ring->second.entries) {
      if (entry.sequence < from) continue;
      if (text.back() == '}') text += ',';
      text += entry.json;
    }
  }
  text += fmt::format("],\"next\":{}}}\n", next);
  return text;
}

}  // namespace muster::coordinator
