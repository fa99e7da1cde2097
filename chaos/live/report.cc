#include "chaos/live/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "chaos/live/verdict.h"

namespace muster::chaos {
namespace {

using Json = nlohmann::json;

double Seconds(std::int64_t t_ns, const Evidence& evidence) {
  const std::int64_t origin = evidence.training_ns != 0 ? evidence.training_ns : evidence.began_ns;
  return t_ns == 0 ? 0 : static_cast<double>(t_ns - origin) / 1e9;
}

bool AllHeld(const std::vector<Finding>& findings) {
  return std::all_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.ok || finding.skipped; });
}

Json FindingJson(const Finding& finding) {
  return {{"name", finding.name},
          {"promise", finding.promise},
          {"ok", finding.ok},
          {"skipped", finding.skipped},
          {"evidence", finding.evidence}};
}

Json InjectionJson(const Evidence& evidence, const Injection& injection, double recovery_ms) {
  const PlannedFault& planned = injection.planned;
  Json json = {{"number", planned.number},     {"kind", NameOf(planned.kind)},
               {"planned", Describe(planned)}, {"what", injection.what},
               {"victims", injection.victims}, {"pids", injection.pids},
               {"blocks", injection.blocks},   {"failure", injection.failure}};
  if (injection.begun_ns != 0) {
    json["begun_s"] = Seconds(injection.begun_ns, evidence);
    json["over_s"] = Seconds(injection.over_ns, evidence);
  }
  if (recovery_ms >= 0) json["recovery_ms"] = recovery_ms;
  return json;
}

Json IncidentJson(const IncidentStatus& incident) {
  Json blamed = Json::array();
  for (const BlameStatus& blame : incident.blamed) {
    blamed.push_back(
        {{"worker", blame.worker}, {"cause", blame.cause}, {"evidence", blame.evidence}});
  }
  return {{"from", incident.from},
          {"to", incident.to},
          {"cause", incident.cause},
          {"world_before", incident.world_before},
          {"world_after", incident.world_after},
          {"noticed_unix_ms", incident.noticed_unix_ms},
          {"phases_ms", incident.phases_ms},
          {"restored_from", incident.restored_from},
          {"restored_step", incident.restored_step},
          {"steps_redone", incident.steps_redone},
          {"blamed", std::move(blamed)}};
}

Json ProcessJson(const Evidence& evidence, const ProcessHistory& process) {
  std::int64_t descriptors = 0;
  std::int64_t threads = 0;
  std::int64_t resident = 0;
  for (const ProcessSample& sample : process.samples) {
    descriptors = std::max(descriptors, sample.descriptors);
    threads = std::max(threads, sample.threads);
    resident = std::max(resident, sample.resident_kib);
  }
  return {{"pid", process.pid},
          {"role", process.role},
          {"name", process.name},
          {"first_s", Seconds(process.first_ns, evidence)},
          {"last_s", Seconds(process.last_ns, evidence)},
          {"most_descriptors", descriptors},
          {"most_threads", threads},
          {"most_resident_kib", resident}};
}

// Control characters may not stand in XML at all.
std::string XmlText(std::string_view text) {
  std::string clean;
  for (const char c : text) {
    const bool allowed = static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t';
    clean += allowed ? c : '?';
  }
  return Escaped(clean);
}

Status WriteWhole(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  {
    std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
    file << text;
    if (!file.flush()) return Internal(fmt::format("{} cannot be written", fresh));
  }
  std::error_code error;
  std::filesystem::rename(fresh, path, error);
  if (error) return Internal(fmt::format("{}: {}", path, error.message()));
  return {};
}

}  // namespace

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\'': escaped += "&#39;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

std::string JsonReport(const Evidence& evidence, const std::vector<Finding>& findings) {
  Json json = {{"ok", AllHeld(findings)},
               {"scenario", evidence.scenario.name},
               {"summary", evidence.scenario.summary},
               {"seed", evidence.seed},
               {"program", evidence.program},
               {"steps", evidence.facts.steps},
               {"finished", evidence.finished},
               {"seconds", Seconds(evidence.ended_ns, evidence)},
               {"directory", evidence.directory}};
  Json& list = json["findings"] = Json::array();
  for (const Finding& finding : findings) list.push_back(FindingJson(finding));
  const std::vector<double> recoveries = RecoveryMillis(evidence);
  Json& injections = json["injections"] = Json::array();
  for (std::size_t i = 0; i < evidence.injections.size(); ++i) {
    injections.push_back(InjectionJson(evidence, evidence.injections[i], recoveries[i]));
  }
  Json& left_out = json["left_out"] = Json::array();
  for (const LeftOut& left : evidence.left_out) {
    left_out.push_back({{"kind", NameOf(left.kind)}, {"reason", left.reason}});
  }
  Json& incidents = json["incidents"] = Json::array();
  for (const IncidentStatus& incident : evidence.incidents) {
    incidents.push_back(IncidentJson(incident));
  }
  Json& processes = json["processes"] = Json::array();
  for (const ProcessHistory& process : evidence.processes) {
    processes.push_back(ProcessJson(evidence, process));
  }
  Json& logs = json["logs"] = Json::array();
  for (const LogFact& log : evidence.logs) {
    logs.push_back({{"name", log.name}, {"bytes", log.bytes}, {"lines", log.lines}});
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string JunitReport(const Evidence& evidence, const std::vector<Finding>& findings) {
  std::size_t failed = 0;
  std::size_t skipped = 0;
  std::string cases;
  const std::string suite = XmlText("muster-chaos." + evidence.scenario.name);
  for (const Finding& finding : findings) {
    const std::string text = XmlText(finding.evidence);
    cases +=
        fmt::format("  <testcase classname=\"{}\" name=\"{}\">\n", suite, XmlText(finding.name));
    if (finding.skipped) {
      ++skipped;
      cases += fmt::format("    <skipped message=\"{}\"/>\n", text);
    } else if (!finding.ok) {
      ++failed;
      cases += fmt::format("    <failure message=\"{}\"/>\n", text);
    } else {
      cases += fmt::format("    <system-out>{}</system-out>\n", text);
    }
    cases += "  </testcase>\n";
  }
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{}\" tests=\"{}\" "
      "failures=\"{}\" skipped=\"{}\" time=\"{:.3f}\">\n  <properties>\n    <property "
      "name=\"seed\" value=\"{}\"/>\n  </properties>\n{}</testsuite>\n",
      suite, findings.size(), failed, skipped, Seconds(evidence.ended_ns, evidence), evidence.seed,
      cases);
}

Status WriteReport(const std::string& directory, const Evidence& evidence,
                   const std::vector<Finding>& findings) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return Internal(fmt::format("{}: {}", directory, error.message()));
  MUSTER_RETURN_IF_ERROR(WriteWhole(directory + "/report.html", HtmlReport(evidence, findings)));
  MUSTER_RETURN_IF_ERROR(WriteWhole(directory + "/report.json", JsonReport(evidence, findings)));
  return WriteWhole(directory + "/junit.xml", JunitReport(evidence, findings));
}

}  // namespace muster::chaos
