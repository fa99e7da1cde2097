// The page of the report.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "chaos/live/report.h"
#include "chaos/live/verdict.h"

namespace muster::chaos {
namespace {

constexpr int kPictureWidth = 1180;
constexpr std::size_t kMostRows = 400;

constexpr std::string_view kStyle = R"(
:root{color-scheme:light dark;--ink:#1d2530;--soft:#5a6675;--line:#d9dee5;--page:#fff;
--card:#f6f8fa;
--ok:#17683b;--okbg:#e3f4e9;--bad:#a3131d;--badbg:#fde8e8;--open:#7a5200;--openbg:#fff3d6;
--fault:#c2362b;--g0:#3d6fb4;--g1:#1f766b;--g2:#7a5cab;--g3:#4d7d2f;--g4:#985417;--g5:#a34a78;
--musterd:#6b7786;--in:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e3e8ee;--soft:#9aa7b5;--line:#323a45;
--page:#14181d;
--card:#1c2229;--ok:#7fd6a0;--okbg:#143423;--bad:#ff9d9d;--badbg:#451a1d;--open:#f1cd7c;
--openbg:#3b2f12;--fault:#ff7a6b;--g0:#6f9ede;--g1:#55bbae;--g2:#a88ddb;--g3:#86b665;--g4:#d99458;
--g5:#d47fab;--musterd:#8995a3;--in:#10141a}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1240px;margin:0 auto;padding:28px 24px 60px}
h1{font-size:24px;margin:0 0 4px}h2{font-size:17px;margin:36px 0 10px}p{margin:4px 0}
.soft{color:var(--soft)}code,td.code{font:13px/1.45 ui-monospace,Menlo,Consolas,monospace;
overflow-wrap:anywhere}
.banner{display:flex;flex-wrap:wrap;gap:6px 18px;align-items:baseline;border-radius:10px;
padding:16px 20px;margin:0 0 18px}.banner strong{font-size:20px}
.banner.ok{background:var(--okbg);color:var(--ok)}.banner.bad{background:var(--badbg);
color:var(--bad)}
.banner.open{background:var(--openbg);color:var(--open)}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(146px,1fr));gap:10px 20px;
margin:14px 0}
dl div:first-child{grid-column:span 2}dl div{border-left:3px solid var(--line);padding-left:10px}
dt{color:var(--soft);font-size:12.5px}
dd{margin:0;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}
.wide{overflow-x:auto;border:1px solid var(--line);border-radius:10px;background:var(--card)}
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;
padding:7px 12px;
border-top:1px solid var(--line)}thead th{border-top:0;color:var(--soft);font-weight:600;
font-size:12.5px;vertical-align:bottom}td.n{text-align:right;font-variant-numeric:tabular-nums;
white-space:nowrap}td.code{overflow-wrap:break-word}th.n{text-align:right}
td.text{min-width:190px;overflow-wrap:anywhere}
.mark{display:inline-block;border-radius:5px;padding:0 8px;font-weight:600;font-size:13px;
white-space:nowrap}
.mark.ok{background:var(--okbg);color:var(--ok)}.mark.bad{background:var(--badbg);
color:var(--bad)}
.mark.open{background:var(--openbg);color:var(--open)}
svg{display:block;font:12px system-ui,sans-serif}.grid{stroke:var(--line)}
.tick{fill:var(--soft);text-anchor:middle}.empty{fill:var(--soft)}.lane{fill:var(--ink);
text-anchor:end}
.inbar{fill:var(--in);font-size:11px}.many{fill:var(--musterd)}.number{fill:var(--fault);
text-anchor:middle;font-weight:700}
.g0{fill:var(--g0)}.g1{fill:var(--g1)}.g2{fill:var(--g2)}.g3{fill:var(--g3)}.g4{fill:var(--g4)}
.g5{fill:var(--g5)}.coordinator{fill:var(--musterd)}.saved{stroke:var(--in);stroke-width:1.5}
.fault{fill:var(--fault);fill-opacity:.26;stroke:var(--fault);stroke-opacity:.5;stroke-width:.6}
.faultline{stroke:var(--fault);stroke-opacity:.6;stroke-dasharray:2 3}.loss{fill:none;
stroke:var(--g0);
stroke-width:1.2}.phase.abort{fill:#8f4bb3}.phase.ready{fill:#d98032}.phase.form{fill:#b59b00}
.phase.restore{fill:#3d8f5a}.voided{stroke:var(--soft);
stroke-width:2;stroke-linecap:round;stroke-opacity:.6;fill:none}.reform{fill:var(--soft);
fill-opacity:.13}
.phase.first_step{fill:#3d6fb4}
.key span{display:inline-block;margin-right:16px}.key i{display:inline-block;width:12px;
height:8px;
margin-right:5px;border-radius:2px}
@media(max-width:600px){main{padding:16px 12px}th,td{padding:6px 8px}}
@media print{.wide{overflow:visible}main{max-width:none;padding:0}svg{width:100%;height:auto}
.bar,.phase,.fault,.mark,.banner{print-color-adjust:exact}tr{break-inside:avoid}}
)";

double Seconds(std::int64_t t_ns, const Evidence& evidence) {
  const std::int64_t origin = evidence.training_ns != 0 ? evidence.training_ns : evidence.began_ns;
  return static_cast<double>(t_ns - origin) / 1e9;
}

std::string Mark(const Finding& finding) {
  if (finding.skipped) return "<span class=\"mark open\">not judged</span>";
  return finding.ok ? "<span class=\"mark ok\">holds</span>"
                    : "<span class=\"mark bad\">BROKEN</span>";
}

// Wide things scroll by themselves, also by keyboard; the page does not.
constexpr const char* kScroller = "<div class=\"wide\" tabindex=\"0\">";

// A column of numbers is marked by a "#" before its name.
std::string Head(const std::vector<std::string>& columns) {
  std::string html = kScroller + std::string("<table><thead><tr>");
  for (const std::string& column : columns) {
    const bool number = column.starts_with('#');
    html += fmt::format("<th scope=\"col\"{}>{}</th>", number ? " class=\"n\"" : "",
                        column.substr(number ? 1 : 0));
  }
  return html + "</tr></thead><tbody>";
}

std::string Foot(std::size_t rows) {
  std::string html = "</tbody></table></div>";
  if (rows > kMostRows) {
    html += fmt::format("<p class=\"soft\">{} more are in report.json.</p>", rows - kMostRows);
  }
  return html;
}

std::int64_t Broken(const std::vector<Finding>& findings) {
  return std::count_if(findings.begin(), findings.end(),
                       [](const Finding& finding) { return !finding.ok && !finding.skipped; });
}

std::string Banner(const std::vector<Finding>& findings) {
  const std::int64_t broken = Broken(findings);
  const std::int64_t open = std::count_if(findings.begin(), findings.end(),
                                          [](const Finding& finding) { return finding.skipped; });
  const std::int64_t all = std::ssize(findings);
  const char* kind = broken != 0 ? "bad" : open == all ? "open" : "ok";
  const char* verdict = broken != 0 ? "✗ BROKEN" : open == all ? "Nothing was judged" : "✓ held";
  std::string html = fmt::format(
      "<div class=\"banner {}\" id=\"verdict\"><strong>{}</strong><span>{} of {} checks hold", kind,
      verdict, all - broken - open, all);
  if (broken != 0) html += fmt::format(", {} broken", broken);
  if (open != 0) html += fmt::format(", {} not judged", open);
  return html + "</span></div>";
}

std::string VerdictTable(const std::vector<Finding>& findings) {
  std::string html = "<h2>Verdict</h2>" + Head({"outcome", "promise", "check", "evidence"});
  for (const Finding& finding : findings) {
    html += fmt::format(
        "<tr class=\"finding\"><td>{}</td><td>{}</td><td class=\"code\">{}</td><td "
        "class=\"text\">{}</td></tr>",
        Mark(finding), Escaped(finding.promise), Escaped(finding.name), Escaped(finding.evidence));
  }
  return html + Foot(0);
}

std::string FaultTable(const Evidence& evidence) {
  std::string html = "<h2>Faults</h2>";
  if (evidence.injections.empty()) html += "<p class=\"soft\">None was made.</p>";
  const std::vector<double> recoveries = RecoveryMillis(evidence);
  if (!evidence.injections.empty()) {
    html += Head({"#no.", "kind", "#at", "#for", "#next step after", "what"});
  }
  for (std::size_t i = 0; i < std::min(kMostRows, evidence.injections.size()); ++i) {
    const Injection& injection = evidence.injections[i];
    const bool made = injection.failure.empty();
    html += fmt::format(
        "<tr><td class=\"n\">{}</td><td class=\"code\">{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"text\">{}</td></tr>",
        injection.planned.number, NameOf(injection.planned.kind),
        injection.begun_ns == 0 ? ""
                                : fmt::format("{:.2f} s", Seconds(injection.begun_ns, evidence)),
        injection.over_ns > injection.begun_ns && injection.planned.hold > Duration()
            ? fmt::format("{:.2f} s",
                          static_cast<double>(injection.over_ns - injection.begun_ns) / 1e9)
            : "",
        recoveries[i] < 0 ? "" : fmt::format("{:.1f} ms", recoveries[i]),
        Escaped(made ? injection.what : "not made: " + injection.failure));
  }
  if (!evidence.injections.empty()) html += Foot(evidence.injections.size());
  for (const LeftOut& left : evidence.left_out) {
    html += fmt::format("<p class=\"soft\">Left out: <code>{}</code>, {}</p>", NameOf(left.kind),
                        Escaped(left.reason));
  }
  return html;
}

std::string IncidentTable(const Evidence& evidence) {
  std::string html = "<h2>Re-forms</h2>";
  if (evidence.incidents.empty()) return html + "<p class=\"soft\">None.</p>";
  html += Head({"#generation", "#at", "cause", "#workers", "#abort, ms", "#ready, ms", "#form, ms",
                "#restore, ms", "#first step, ms", "state from", "#redone", "blamed"});
  for (std::size_t i = 0; i < std::min(kMostRows, evidence.incidents.size()); ++i) {
    const IncidentStatus& incident = evidence.incidents[i];
    html += fmt::format(
        "<tr><td class=\"n\">{} → {}</td><td class=\"n\">{:.2f} s</td><td "
        "class=\"code\">{}</td><td "
        "class=\"n\">{} → {}</td>",
        incident.from, incident.to,
        Seconds(static_cast<std::int64_t>(incident.noticed_unix_ms * 1e6), evidence),
        Escaped(incident.cause), incident.world_before, incident.world_after);
    for (const char* phase : {"abort", "ready", "form", "restore", "first_step"}) {
      const auto found = incident.phases_ms.find(phase);
      html += found == incident.phases_ms.end()
                  ? "<td></td>"
                  : fmt::format("<td class=\"n\">{:.1f}</td>", found->second);
    }
    std::vector<std::string> blamed;
    for (const BlameStatus& blame : incident.blamed) {
      blamed.push_back(fmt::format("{}: {}", blame.worker, blame.evidence));
    }
    html +=
        fmt::format("<td>{} of step {}</td><td class=\"n\">{}</td><td class=\"text\">{}</td></tr>",
                    Escaped(incident.restored_from), incident.restored_step, incident.steps_redone,
                    Escaped(fmt::format("{}", fmt::join(blamed, "; "))));
  }
  return html + Foot(evidence.incidents.size());
}

std::string ProcessTable(const Evidence& evidence) {
  std::string html = "<h2>Processes</h2>";
  if (evidence.processes.empty()) return html + "<p class=\"soft\">None was seen.</p>";
  html += Head(
      {"#pid", "role", "name", "#life", "#from", "#to", "#descriptors", "#threads", "#memory"});
  std::map<std::pair<std::string, std::string>, int> lives;
  for (std::size_t i = 0; i < std::min(kMostRows, evidence.processes.size()); ++i) {
    const ProcessHistory& process = evidence.processes[i];
    ProcessSample most;
    for (const ProcessSample& sample : process.samples) {
      most.descriptors = std::max(most.descriptors, sample.descriptors);
      most.threads = std::max(most.threads, sample.threads);
      most.resident_kib = std::max(most.resident_kib, sample.resident_kib);
    }
    html += fmt::format(
        "<tr><td class=\"n\">{}</td><td>{}</td><td class=\"code\">{}</td><td "
        "class=\"n\">{}</td><td class=\"n\">{:.1f} "
        "s</td><td class=\"n\">{:.1f} s</td><td class=\"n\">{}</td><td class=\"n\">{}</td><td "
        "class=\"n\">{:.1f} MiB</td></tr>",
        process.pid, Escaped(process.role), Escaped(process.name),
        ++lives[{process.role, process.name}], Seconds(process.first_ns, evidence),
        Seconds(process.last_ns, evidence), most.descriptors, most.threads,
        static_cast<double>(most.resident_kib) / 1024);
  }
  return html + Foot(evidence.processes.size());
}

std::string Facts(const Evidence& evidence) {
  const auto fact = [](const std::string& name, const std::string& value) {
    return fmt::format("<div><dt>{}</dt><dd>{}</dd></div>", name, Escaped(value));
  };
  const std::int64_t redone = StepsRedone(evidence.facts);
  const double duration = static_cast<double>(EndOf(evidence) - evidence.began_ns) / 1e9;
  return "<dl>" + fact("seed", std::to_string(evidence.seed)) +
         fact("nodes × workers",
              fmt::format("{} × {}", evidence.scenario.nodes, evidence.scenario.workers_per_node)) +
         fact("duration", fmt::format("{:.1f} s", duration)) +
         fact("committed steps", std::to_string(evidence.facts.steps)) +
         fact("steps redone", std::to_string(redone)) +
         fact("re-forms", std::to_string(evidence.incidents.size())) +
         fact("faults", std::to_string(evidence.injections.size())) + "</dl>";
}

// What went wrong with the run itself, beside the checks.
std::string Troubles(const Evidence& evidence) {
  std::string html;
  const auto trouble = [&html](const std::string& what, const std::string& detail) {
    html += fmt::format("<p><span class=\"mark open\">{}</span> {}</p>", what, Escaped(detail));
  };
  if (!evidence.trouble.empty()) trouble("given up", evidence.trouble);
  for (const std::string& node : evidence.unended) trouble("killed at the end", node);
  for (const std::string& stray : evidence.strays) trouble("outlived the run", stray);
  return html;
}

std::string Key() {
  std::string html =
      "<p class=\"key soft\"><span>bars: generations, with number·world size; grey: many short ones"
      "</span><span><i style=\"background:var(--fault);opacity:.45;outline:1px solid\"></i>fault, "
      "for "
      "as long as it lasted</span><span>phases of a re-form, above musterd:</span>";
  const std::pair<const char*, const char*> phases[] = {{"#8f4bb3", "abort"},
                                                        {"#d98032", "ready"},
                                                        {"#b59b00", "form"},
                                                        {"#3d8f5a", "restore"},
                                                        {"#3d6fb4", "first step"}};
  for (const auto& [colour, name] : phases) {
    html += fmt::format("<span><i style=\"background:{}\"></i>{}</span>", colour, name);
  }
  return html + "<span>ticks on musterd: checkpoints that count</span></p>";
}

}  // namespace

std::string HtmlReport(const Evidence& evidence, const std::vector<Finding>& findings) {
  const std::string name = Escaped(evidence.scenario.name);
  std::string html = fmt::format(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><title>{}: {}</title><style>{}</style>"
      "</head><body><main><h1>{}</h1><p class=\"soft\">{}</p>",
      name, Broken(findings) == 0 ? "held" : "BROKEN", kStyle, name,
      Escaped(evidence.scenario.summary));
  html += Banner(findings);
  html += Facts(evidence);
  html +=
      fmt::format("<p>Again: <code id=\"repeat\">{}</code></p>", Escaped(RepeatCommand(evidence)));
  html += Troubles(evidence);
  html += VerdictTable(findings);
  html += "<h2>Timeline</h2>" + std::string(kScroller) + TimelineSvg(evidence, kPictureWidth) +
          "</div>" + Key();
  html += "<h2>Loss</h2>" + std::string(kScroller) + LossSvg(evidence, kPictureWidth) + "</div>" +
          "<p class=\"soft\">Line: steps that stand. Faint: steps that were taken again. Dashed: "
          "faults.</p>";
  html += FaultTable(evidence) + IncidentTable(evidence) + ProcessTable(evidence);
  html += fmt::format("<p class=\"soft\">Logs and records, if they were kept: <code>{}</code></p>",
                      Escaped(evidence.directory));
  return html + "</main></body></html>\n";
}

}  // namespace muster::chaos
