// The pictures of the report: workers over time, and the loss.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "chaos/live/report.h"

namespace muster::chaos {
namespace {

constexpr int kLabel = 96;  // pixels for the names of lanes
constexpr int kLane = 26;
constexpr int kBar = 16;
constexpr int kHead = 40;  // numbers of faults
constexpr int kAxis = 36;
constexpr int kMargin = 14;
constexpr double kLetter = 7;  // pixels, no letter of a number is wider
constexpr std::size_t kMostLanes = 80;

// From time to pixels.
struct Scale {
  std::int64_t from_ns = 0;
  std::int64_t to_ns = 1;
  int left = 0;
  int right = 0;

  [[nodiscard]] double X(std::int64_t t_ns) const {
    const double part = static_cast<double>(std::clamp(t_ns, from_ns, to_ns) - from_ns) /
                        static_cast<double>(std::max<std::int64_t>(1, to_ns - from_ns));
    return left + part * (right - left);
  }
};

Scale ScaleOf(const Evidence& evidence, int width) {
  Scale scale;
  scale.from_ns = evidence.began_ns;
  scale.to_ns = std::max(EndOf(evidence), evidence.began_ns + 1);
  scale.left = kLabel;
  scale.right = width - kMargin;
  return scale;
}

// 1, 2 or 5 times a power of ten seconds, so that there are some 6 to 12 marks.
double TickSeconds(double span) {
  const double rough = std::max(span, 1e-3) / 10;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

std::string Axis(const Evidence& evidence, const Scale& scale, int top, int bottom) {
  std::string svg;
  const std::int64_t origin = evidence.training_ns != 0 ? evidence.training_ns : scale.from_ns;
  const double tick = TickSeconds(static_cast<double>(scale.to_ns - scale.from_ns) / 1e9);
  const auto first = static_cast<std::int64_t>(
      std::ceil(static_cast<double>(scale.from_ns - origin) / 1e9 / tick));
  double labelled = 0;
  for (std::int64_t i = first;; ++i) {
    const double seconds = static_cast<double>(i) * tick;
    const std::int64_t at = origin + static_cast<std::int64_t>(seconds * 1e9);
    if (at > scale.to_ns) break;
    const double x = scale.X(at);
    svg += fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>",
                       x, top, bottom);
    const std::string label = fmt::format("{:g} s", seconds);
    const double width = kLetter * static_cast<double>(label.size());
    if (x - width / 2 < labelled || x + width / 2 > scale.right + kMargin) continue;
    labelled = x + width / 2 + 6;
    svg +=
        fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{}\">{}</text>", x, bottom + 16, label);
  }
  return svg;
}

// One stay of one process in one generation.
struct Bar {
  std::int64_t from_ns = 0;
  std::int64_t to_ns = 0;
  std::int64_t generation = 0;
  std::int64_t world_size = 0;
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
  std::int64_t pid = 0;
  std::int64_t last_generation = 0;  // where several are drawn as one
};

// In the order of time; those that could not be told apart are one.
std::vector<Bar> Merged(std::vector<Bar> bars, const Scale& scale) {
  std::sort(bars.begin(), bars.end(),
            [](const Bar& a, const Bar& b) { return a.from_ns < b.from_ns; });
  constexpr double kNarrow = 6;
  std::vector<Bar> merged;
  double width_of_last = kNarrow;
  for (const Bar& bar : bars) {
    const double width = scale.X(bar.to_ns) - scale.X(bar.from_ns);
    if (!merged.empty() && width < kNarrow && width_of_last < kNarrow &&
        scale.X(bar.from_ns) - scale.X(merged.back().to_ns) < kNarrow) {
      Bar& last = merged.back();
      last.to_ns = std::max(last.to_ns, bar.to_ns);
      last.last_generation = std::max(last.last_generation, bar.generation);
      last.last_step = std::max(last.last_step, bar.last_step);
    } else {
      merged.push_back(bar);
    }
    width_of_last = width;
  }
  return merged;
}

std::map<std::string, std::vector<Bar>> BarsOf(const Evidence& evidence, const Scale& scale) {
  std::map<std::string, std::map<std::pair<std::int64_t, std::int64_t>, Bar>> stays;
  for (const StepRecord& record : evidence.facts.records) {
    if (record.final) continue;
    Bar& bar = stays[record.worker][{record.generation, record.pid}];
    if (bar.from_ns == 0) {
      bar = {record.t_ns, record.t_ns, record.generation, record.world_size,
             record.step, record.step, record.pid,        record.generation};
    }
    bar.from_ns = std::min(bar.from_ns, record.t_ns);
    bar.to_ns = std::max(bar.to_ns, record.t_ns);
    bar.last_step = std::max(bar.last_step, record.step);
  }
  std::map<std::string, std::vector<Bar>> bars;
  for (const auto& [worker, by_generation] : stays) {
    std::vector<Bar> list;
    for (const auto& [key, bar] : by_generation) list.push_back(bar);
    bars[worker] = Merged(std::move(list), scale);
  }
  return bars;
}

std::string LaneOf(const std::string& name, int y) {
  constexpr std::size_t kMostLetters = 11;
  const std::string shown = Shortened(name, kMostLetters);
  return fmt::format("<text class=\"lane\" x=\"{}\" y=\"{}\">{}<title>{}</title></text>",
                     kLabel - 10, y + kLane / 2 + 4, Escaped(shown), Escaped(name));
}

std::string DrawBars(const std::vector<Bar>& bars, const Scale& scale, int y) {
  std::string svg;
  const int top = y + (kLane - kBar) / 2;
  for (const Bar& bar : bars) {
    const double x = scale.X(bar.from_ns);
    const double width = std::max(1.5, scale.X(bar.to_ns) - x);
    const bool several = bar.last_generation != bar.generation;
    const std::string label =
        several ? std::string() : fmt::format("g{}·{}", bar.generation, bar.world_size);
    svg += fmt::format(
        "<rect class=\"bar {}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" rx=\"2\">"
        "<title>generation {}{}, world size {}, steps {} to {}, process {}</title></rect>",
        several ? "many" : fmt::format("g{}", bar.generation % 6), x, top, width, kBar,
        bar.generation, several ? fmt::format(" to {}", bar.last_generation) : "", bar.world_size,
        bar.first_step, bar.last_step, bar.pid);
    // "·" has two bytes: the one too many is the margin.
    if (!several && width > kLetter * static_cast<double>(label.size()) + 3) {
      svg += fmt::format("<text class=\"inbar\" x=\"{:.1f}\" y=\"{}\">{}</text>", x + 5, top + 12,
                         label);
    }
  }
  return svg;
}

std::string DrawCoordinator(const Evidence& evidence, const Scale& scale, int y) {
  std::string svg = LaneOf("musterd", y);
  const int top = y + (kLane - kBar) / 2;
  for (const ProcessHistory& process : evidence.processes) {
    if (process.role != "coordinator") continue;
    const double x = scale.X(process.first_ns);
    svg += fmt::format(
        "<rect class=\"bar coordinator\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" "
        "rx=\"2\"><title>musterd, process {}</title></rect>",
        x, top, std::max(1.5, scale.X(process.last_ns) - x), kBar, process.pid);
  }
  for (const EventStatus& event : evidence.events) {
    if (event.kind != "checkpoint_announced") continue;
    const double x = scale.X(static_cast<std::int64_t>(event.unix_ms * 1e6));
    svg += fmt::format(
        "<line class=\"saved\" x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1}\" "
        "y2=\"{2}\"><title>checkpoint of step {3} counts</title></line>",
        x, top + 4, top + kBar - 4, event.step);
  }
  return svg;
}

// Behind the bars: when a generation was being formed.
std::string ShadeIncidents(const Evidence& evidence, const Scale& scale, int top, int bottom) {
  std::string svg;
  for (const IncidentStatus& incident : evidence.incidents) {
    double end_ms = incident.noticed_unix_ms;
    for (const auto& [phase, ms] : incident.phases_ms) end_ms += ms;
    const double x = scale.X(static_cast<std::int64_t>(incident.noticed_unix_ms * 1e6));
    svg += fmt::format(
        "<rect class=\"reform\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\"/>", x, top,
        std::max(0.8, scale.X(static_cast<std::int64_t>(end_ms * 1e6)) - x), bottom - top);
  }
  return svg;
}

// The phases of a re-form, one after another, as a thin band above the lanes.
std::string DrawIncidents(const Evidence& evidence, const Scale& scale, int y) {
  std::string svg;
  for (const IncidentStatus& incident : evidence.incidents) {
    double at_ms = incident.noticed_unix_ms;
    for (const char* phase : {"abort", "ready", "form", "restore", "first_step"}) {
      const auto found = incident.phases_ms.find(phase);
      if (found == incident.phases_ms.end()) continue;
      const double x = scale.X(static_cast<std::int64_t>(at_ms * 1e6));
      at_ms += found->second;
      const double width = std::max(0.8, scale.X(static_cast<std::int64_t>(at_ms * 1e6)) - x);
      svg += fmt::format(
          "<rect class=\"phase {}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"6\">"
          "<title>generation {} to {}: {} {:.1f} ms</title></rect>",
          phase, x, y, width, incident.from, incident.to, phase, found->second);
    }
  }
  return svg;
}

// A number on top, and a line, or a band for as long as it lasted, down to whom it hit.
std::string DrawFaults(const Evidence& evidence, const Scale& scale,
                       const std::map<std::string, int>& lanes, int coordinator, int bottom) {
  std::string svg;
  std::array<double, 2> taken = {-100, -100};  // up to where, by row of numbers
  for (const Injection& injection : evidence.injections) {
    if (injection.begun_ns == 0 || !injection.failure.empty()) continue;
    const double x = scale.X(injection.begun_ns);
    // One that was never undone lasts to the end.
    const double end = injection.over_ns == 0 ? scale.right : scale.X(injection.over_ns);
    const std::string title = fmt::format("<title>{}</title>", Escaped(injection.what));
    std::vector<int> rows;
    for (const std::string& victim : injection.victims) {
      const auto lane = lanes.find(victim);
      if (lane != lanes.end()) rows.push_back(lane->second);
    }
    for (const std::string& node : injection.planned.nodes) {
      if (!rows.empty()) break;
      for (const auto& [worker, lane] : lanes) {
        if (worker.starts_with(node + "-")) rows.push_back(lane);
      }
    }
    if (rows.empty()) rows.push_back(coordinator);
    for (const int row : rows) {
      svg += fmt::format(
          "<rect class=\"fault\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" "
          "height=\"{}\">{}</rect>",
          x, row + 1, std::max(2.0, end - x), kLane - 2, title);
    }
    svg += fmt::format(
        "<line class=\"faultline\" x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1}\" "
        "y2=\"{2}\"/>",
        x, kHead - 8, bottom);
    // Numbers that would stand on each other are left to the title and the table.
    const std::string number = std::to_string(injection.planned.number);
    const double half = (kLetter + 1) * static_cast<double>(number.size()) / 2;
    const std::size_t row = x - half >= taken[0] ? 0 : 1;
    if (x - half < taken[row] || x + half > scale.right + kMargin) continue;
    taken[row] = x + half + 2;
    svg += fmt::format("<text class=\"number\" x=\"{:.1f}\" y=\"{}\">{}{}</text>", x,
                       row == 0 ? 26 : 12, number, title);
  }
  return svg;
}

// Least and greatest loss of the steps that fall on one column of pixels.
struct Column {
  double lo = std::numeric_limits<double>::max();
  double hi = std::numeric_limits<double>::lowest();
};

using Columns = std::map<int, Column>;

void AddTo(Columns* columns, const Scale& scale, const StepRecord& record) {
  if (!std::isfinite(record.loss)) return;
  Column& column = (*columns)[static_cast<int>(scale.X(record.t_ns))];
  column.lo = std::min(column.lo, record.loss);
  column.hi = std::max(column.hi, record.loss);
}

// Steps that stand, and those that were taken back. One rank is enough: a check compares them.
std::pair<Columns, Columns> ColumnsOf(const Evidence& evidence, const Scale& scale) {
  Columns standing;
  Columns voided;
  std::set<std::pair<std::int64_t, std::int64_t>> stand;  // step and generation
  for (const auto& [step, by_generation] : StandingOf(evidence.facts)) {
    AddTo(&standing, scale, *by_generation.rbegin()->second.front());
    for (const auto& [generation, records] : by_generation) stand.insert({step, generation});
  }
  for (const StepRecord& record : evidence.facts.records) {
    if (record.final || stand.contains({record.step, record.generation})) continue;
    AddTo(&voided, scale, record);
  }
  return {std::move(standing), std::move(voided)};
}

std::string DrawLoss(const Evidence& evidence, const Scale& scale, int top, int bottom) {
  const auto [standing, voided] = ColumnsOf(evidence, scale);
  double lo = std::numeric_limits<double>::max();
  double hi = std::numeric_limits<double>::lowest();
  for (const Columns* columns : {&standing, &voided}) {
    for (const auto& [x, column] : *columns) {
      lo = std::min(lo, column.lo);
      hi = std::max(hi, column.hi);
    }
  }
  if (lo > hi) {
    return fmt::format("<text class=\"empty\" x=\"{}\" y=\"{}\">no step was recorded</text>",
                       kLabel + 8, (top + bottom) / 2);
  }
  const double span = std::max(1e-9, hi - lo);
  const auto y = [&](double loss) { return bottom - (loss - lo) / span * (bottom - top); };
  std::string path;
  for (const auto& [x, column] : voided) {
    path += fmt::format("M{0},{1:.1f} L{0},{2:.1f} ", x, y(column.hi) - 0.5, y(column.lo) + 0.5);
  }
  std::string svg = fmt::format("<path class=\"voided\" d=\"{}\"/>", path);
  path.clear();
  for (const auto& [x, column] : standing) {
    path += fmt::format("{}{},{:.1f} L{},{:.1f} ", path.empty() ? "M" : "L", x, y(column.hi), x,
                        y(column.lo));
  }
  svg += fmt::format("<path class=\"loss\" d=\"{}\"/>", path);
  const std::string label = "<text class=\"lane\" x=\"{}\" y=\"{}\">{:.4g}</text>";
  svg += fmt::format(fmt::runtime(label), kLabel - 10, top + 4, hi);
  if (hi > lo) svg += fmt::format(fmt::runtime(label), kLabel - 10, bottom + 4, lo);
  return svg;
}

}  // namespace

std::string TimelineSvg(const Evidence& evidence, int width) {
  const Scale scale = ScaleOf(evidence, width);
  std::map<std::string, std::vector<Bar>> bars = BarsOf(evidence, scale);
  for (const ProcessHistory& process : evidence.processes) {
    if (process.role == "worker") bars[process.name];  // also those that never took a step
  }
  std::map<std::string, int> lanes;
  int y = kHead + kLane;
  for (const auto& [worker, list] : bars) {
    if (lanes.size() == kMostLanes) break;
    lanes[worker] = y;
    y += kLane;
  }
  const int bottom = y + 4;
  const int height = bottom + kAxis;
  std::string svg = fmt::format(
      "<svg id=\"timeline\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
      "aria-labelledby=\"timeline-title timeline-desc\"><title id=\"timeline-title\">Workers and "
      "musterd over time, with faults and re-forms</title><desc id=\"timeline-desc\">{2} workers, "
      "{3} faults, {4} re-forms; the tables below tell the same in words.</desc>",
      width, height, bars.size(), evidence.injections.size(), evidence.incidents.size());
  svg += Axis(evidence, scale, kHead - 4, bottom);
  svg += ShadeIncidents(evidence, scale, kHead, bottom);
  svg += DrawCoordinator(evidence, scale, kHead);
  for (const auto& [worker, top] : lanes) {
    svg += LaneOf(worker, top) + DrawBars(bars[worker], scale, top);
  }
  svg += DrawFaults(evidence, scale, lanes, kHead, bottom);
  svg += DrawIncidents(evidence, scale, kHead - 5);
  if (bars.size() > kMostLanes) {
    svg += fmt::format("<text class=\"empty\" x=\"{}\" y=\"{}\">and {} more workers</text>", kLabel,
                       height - 2, bars.size() - kMostLanes);
  }
  return svg + "</svg>";
}

std::string LossSvg(const Evidence& evidence, int width) {
  constexpr int kHeight = 180;
  const Scale scale = ScaleOf(evidence, width);
  const int bottom = kHeight - kAxis;
  std::string svg = fmt::format(
      "<svg id=\"loss\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\" "
      "aria-labelledby=\"loss-title\"><title id=\"loss-title\">Loss of the standing steps over "
      "time</title>",
      width, kHeight);
  svg += Axis(evidence, scale, 8, bottom);
  for (const Injection& injection : evidence.injections) {
    if (injection.begun_ns == 0 || !injection.failure.empty()) continue;
    svg += fmt::format(
        "<line class=\"faultline\" x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"8\" "
        "y2=\"{1}\"/>",
        scale.X(injection.begun_ns), bottom);
  }
  svg += DrawLoss(evidence, scale, 14, bottom - 6);
  return svg + "</svg>";
}

}  // namespace muster::chaos
