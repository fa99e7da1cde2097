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
constexpr int kAxis = 28;
constexpr int kMargin = 14;
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
  scale.to_ns = std::max(evidence.ended_ns, evidence.began_ns + 1);
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
    constexpr double kLeast = 44;
    if (x - labelled < kLeast || x > scale.right - 12) continue;
    labelled = x;
    svg += fmt::format("<text class=\"tick\" x=\"{:.1f}\" y=\"{}\">{:g} s</text>", x, bottom + 16,
                       seconds);
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
};

std::map<std::string, std::vector<Bar>> BarsOf(const Evidence& evidence) {
  std::map<std::string, std::map<std::pair<std::int64_t, std::int64_t>, Bar>> stays;
  for (const StepRecord& record : evidence.facts.records) {
    if (record.final) continue;
    Bar& bar = stays[record.worker][{record.generation, record.pid}];
    if (bar.from_ns == 0) {
      bar = {record.t_ns, record.t_ns, record.generation, record.world_size,
             record.step, record.step, record.pid};
    }
    bar.to_ns = std::max(bar.to_ns, record.t_ns);
    bar.last_step = std::max(bar.last_step, record.step);
  }
  std::map<std::string, std::vector<Bar>> bars;
  for (const auto& [worker, by_generation] : stays) {
    for (const auto& [key, bar] : by_generation) bars[worker].push_back(bar);
  }
  return bars;
}

std::string LaneOf(const std::string& name, int y) {
  constexpr std::size_t kMostLetters = 12;
  const std::string shown =
      name.size() <= kMostLetters ? name : name.substr(0, kMostLetters - 1) + "…";
  return fmt::format("<text class=\"lane\" x=\"{}\" y=\"{}\">{}</text>", kLabel - 10,
                     y + kLane / 2 + 4, Escaped(shown));
}

std::string DrawBars(const std::vector<Bar>& bars, const Scale& scale, int y) {
  std::string svg;
  const int top = y + (kLane - kBar) / 2;
  for (const Bar& bar : bars) {
    const double x = scale.X(bar.from_ns);
    const double width = std::max(1.5, scale.X(bar.to_ns) - x);
    svg += fmt::format(
        "<rect class=\"bar g{}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" rx=\"2\">"
        "<title>generation {}, world size {}, steps {} to {}, process {}</title></rect>",
        bar.generation % 6, x, top, width, kBar, bar.generation, bar.world_size, bar.first_step,
        bar.last_step, bar.pid);
    constexpr double kRoom = 34;
    if (width > kRoom) {
      svg += fmt::format("<text class=\"inbar\" x=\"{:.1f}\" y=\"{}\">g{}·{}</text>", x + 5,
                         top + 12, bar.generation, bar.world_size);
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
  std::array<double, 2> taken = {-100, -100};  // by row of numbers
  for (const Injection& injection : evidence.injections) {
    if (injection.begun_ns == 0 || !injection.failure.empty()) continue;
    const double x = scale.X(injection.begun_ns);
    const double end = scale.X(std::max(injection.over_ns, injection.begun_ns));
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
    constexpr double kRoom = 20;
    const std::size_t row = x - taken[0] >= kRoom ? 0 : 1;
    if (x - taken[row] < kRoom) continue;
    taken[row] = x;
    svg += fmt::format("<text class=\"number\" x=\"{:.1f}\" y=\"{}\">{}{}</text>", x,
                       row == 0 ? 26 : 12, injection.planned.number, title);
  }
  return svg;
}

// Least and greatest loss of the steps that fall on one column of pixels.
struct Column {
  double lo = std::numeric_limits<double>::max();
  double hi = std::numeric_limits<double>::lowest();
};

std::string DrawLoss(const Evidence& evidence, const Scale& scale, int top, int bottom) {
  std::map<int, Column> columns;
  double lo = std::numeric_limits<double>::max();
  double hi = std::numeric_limits<double>::lowest();
  for (const auto& [step, by_generation] : StandingOf(evidence.facts)) {
    const StepRecord& record = *by_generation.rbegin()->second.front();
    if (!std::isfinite(record.loss)) continue;
    Column& column = columns[static_cast<int>(scale.X(record.t_ns))];
    column.lo = std::min(column.lo, record.loss);
    column.hi = std::max(column.hi, record.loss);
    lo = std::min(lo, record.loss);
    hi = std::max(hi, record.loss);
  }
  if (columns.empty()) return "<text class=\"lane\" x=\"140\" y=\"40\">no step</text>";
  const double span = std::max(1e-9, hi - lo);
  const auto y = [&](double loss) { return bottom - (loss - lo) / span * (bottom - top); };
  std::string path;
  for (const auto& [x, column] : columns) {
    path += fmt::format("{}{},{:.1f} L{},{:.1f} ", path.empty() ? "M" : "L", x, y(column.hi), x,
                        y(column.lo));
  }
  std::string svg = fmt::format("<path class=\"loss\" d=\"{}\"/>", path);
  svg +=
      fmt::format("<text class=\"lane\" x=\"{}\" y=\"{}\">{:.3f}</text>", kLabel - 10, top + 4, hi);
  svg += fmt::format("<text class=\"lane\" x=\"{}\" y=\"{}\">{:.3f}</text>", kLabel - 10,
                     bottom + 4, lo);
  return svg;
}

}  // namespace

std::string TimelineSvg(const Evidence& evidence, int width) {
  const Scale scale = ScaleOf(evidence, width);
  std::map<std::string, std::vector<Bar>> bars = BarsOf(evidence);
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
      "aria-labelledby=\"timeline-title\"><title id=\"timeline-title\">Workers and musterd over "
      "time, with faults and re-forms</title>",
      width, height);
  svg += Axis(evidence, scale, kHead - 4, bottom);
  svg += DrawFaults(evidence, scale, lanes, kHead, bottom);
  svg += DrawCoordinator(evidence, scale, kHead);
  for (const auto& [worker, top] : lanes) {
    svg += LaneOf(worker, top) + DrawBars(bars[worker], scale, top);
  }
  svg += DrawIncidents(evidence, scale, kHead - 5);
  if (bars.size() > kMostLanes) {
    svg += fmt::format("<text class=\"tick\" x=\"{}\" y=\"{}\">and {} more workers</text>", kLabel,
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
