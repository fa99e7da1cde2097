#include "chaos/live/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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
  return {{"number", incident.number},
          {"complete", incident.complete},
          {"from", incident.from},
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

// What stands for a byte that is no text.
constexpr std::string_view kNoLetter = "\xef\xbf\xbd";  // U+FFFD

// How many bytes the letter has that `text`, which is not empty, begins with; 0: it is not UTF-8,
// or a character that XML does not allow.
std::size_t LetterAt(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7f ? 1 : lead == '\n' || lead == '\t' ? 1 : 0;
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  unsigned letter = lead & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80) return 0;
    letter = letter << 6U | (byte(i) & 0x3fU);
  }
  // Longer than need be, half of a pair, C1 controls, no characters, beyond Unicode.
  const bool wrong = (length == 3 && letter < 0x800) || (length == 4 && letter < 0x10000) ||
                     (letter >= 0xd800 && letter < 0xe000) || letter < 0xa0 || letter == 0xfffe ||
                     letter == 0xffff || letter > 0x10ffff;
  return wrong ? 0 : length;
}

// As one word of a shell.
std::string Quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

Json CheckpointJson(const CheckpointFact& checkpoint) {
  return {{"directory", checkpoint.directory},         {"step", checkpoint.step},
          {"announced", checkpoint.announced},         {"loads", checkpoint.loads},
          {"damaged_by_us", checkpoint.damaged_by_us}, {"detail", checkpoint.detail}};
}

Status WriteWhole(const std::string& path, const std::string& text) {
  const std::string fresh = path + ".new";
  {
    std::ofstream file(fresh, std::ios::binary | std::ios::trunc);
    file << text;
    if (!file.flush()) return FromErrno(errno, path);
  }
  std::error_code error;
  std::filesystem::rename(fresh, path, error);
  if (!error) return {};
  const Status failed = FromErrno(error.value(), path);
  std::filesystem::remove(fresh, error);
  return failed;
}

}  // namespace

std::string Escaped(std::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const std::size_t length = LetterAt(text);
    const std::string_view letter = text.substr(0, std::max<std::size_t>(1, length));
    text.remove_prefix(letter.size());
    if (length == 0) {
      escaped += kNoLetter;
    } else if (letter == "&") {
      escaped += "&amp;";
    } else if (letter == "<") {
      escaped += "&lt;";
    } else if (letter == ">") {
      escaped += "&gt;";
    } else if (letter == "\"") {
      escaped += "&quot;";
    } else if (letter == "'") {
      escaped += "&#39;";
    } else {
      escaped += letter;
    }
  }
  return escaped;
}

std::string Shortened(std::string_view text, std::size_t letters) {
  std::size_t end = 0;
  std::size_t before_last = 0;
  std::size_t count = 0;
  while (end < text.size() && count < letters) {
    before_last = end;
    end += std::max<std::size_t>(1, LetterAt(text.substr(end)));
    ++count;
  }
  if (end == text.size()) return std::string(text);
  return std::string(text.substr(0, before_last)) + "…";
}

std::int64_t EndOf(const Evidence& evidence) {
  return std::max({evidence.began_ns, evidence.stopped_ns, evidence.ended_ns});
}

std::string RepeatCommand(const Evidence& evidence) {
  std::string line =
      fmt::format("muster-chaos run {} --seed {}", Quoted(evidence.scenario.name), evidence.seed);
  if (!evidence.program.empty()) line += " --";
  for (const std::string& argument : evidence.program) line += " " + Quoted(argument);
  return line;
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
               {"directory", evidence.directory},
               {"repeat", RepeatCommand(evidence)},
               {"trouble", evidence.trouble},
               {"strays", evidence.strays},
               {"unended", evidence.unended},
               {"steps_redone", StepsRedone(evidence.facts)}};
  Json& list = json["findings"] = Json::array();
  for (const Finding& finding : findings) list.push_back(FindingJson(finding));
  const std::vector<double> recoveries = RecoveryMillis(evidence);
  Json& injections = json["injections"] = Json::array();
  for (std::size_t i = 0; i < evidence.injections.size(); ++i) {
    injections.push_back(InjectionJson(evidence, evidence.injections[i], recoveries[i]));
  }
  Json& recovery = json["recovery_ms"] = Json::array();
  for (const double ms : recoveries) recovery.push_back(ms < 0 ? Json() : Json(ms));
  Json& checkpoints = json["checkpoints"] = Json::array();
  for (const CheckpointFact& checkpoint : evidence.checkpoints) {
    checkpoints.push_back(CheckpointJson(checkpoint));
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
  const std::string suite = Escaped("muster-chaos." + evidence.scenario.name);
  for (const Finding& finding : findings) {
    const std::string text = Escaped(finding.evidence);
    cases +=
        fmt::format("  <testcase classname=\"{}\" name=\"{}\">\n", suite, Escaped(finding.name));
    if (finding.skipped) {
      ++skipped;
      cases += fmt::format("    <skipped message=\"{}\"/>\n", text);
    } else if (!finding.ok) {
      ++failed;
      cases += fmt::format("    <failure message=\"broken\">{}</failure>\n", text);
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
  if (error) return FromErrno(error.value(), directory);
  MUSTER_RETURN_IF_ERROR(WriteWhole(directory + "/report.html", HtmlReport(evidence, findings)));
  MUSTER_RETURN_IF_ERROR(WriteWhole(directory + "/report.json", JsonReport(evidence, findings)));
  return WriteWhole(directory + "/junit.xml", JunitReport(evidence, findings));
}

}  // namespace muster::chaos
