#include "chaos/live/console.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>

#include "chaos/live/process.h"
#include "protocol/transport/steady_clock.h"

namespace muster::chaos {
namespace {

constexpr std::string_view kRed = "\x1b[31m";
constexpr std::string_view kGreen = "\x1b[32m";
constexpr std::string_view kYellow = "\x1b[33m";
constexpr std::string_view kBold = "\x1b[1m";
constexpr std::string_view kReset = "\x1b[0m";
constexpr Duration kPipeInterval = Duration::Seconds(1);

double PhaseOf(const IncidentStatus& incident, const char* phase) {
  const auto found = incident.phases_ms.find(phase);
  return found == incident.phases_ms.end() ? 0 : found->second;
}

void Print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

Console::Console() : terminal_(isatty(STDOUT_FILENO) == 1) {
  const char* no_colour = getenv("NO_COLOR");
  colour_ = terminal_ && (no_colour == nullptr || *no_colour == '\0');
}

std::string Console::Paint(std::string_view colour, std::string_view text) const {
  return colour_ ? fmt::format("{}{}{}", colour, text, kReset) : std::string(text);
}

void Console::ClearProgress() {
  if (terminal_ && !progress_.empty()) Print("\r\x1b[K");
}

void Console::Line(std::string_view text) {
  ClearProgress();
  Print(fmt::format("{}\n", text));
  if (terminal_ && !progress_.empty()) Print(progress_);
}

void Console::Heading(std::string_view text) { Line(Paint(kBold, text)); }

void Console::Event(std::string_view text) { Line(Paint(kYellow, text)); }

void Console::Progress(std::string_view label, const JobStatus& job, std::int64_t steps) {
  const Instant now = MonotonicNow();
  std::string text =
      fmt::format("{:<10} step {:>4} of {}   loss {:.4f}   {} workers   generation {}", label,
                  job.committed, steps, job.loss, job.world_size, job.generation);
  if (!job.waiting_for.empty()) text += "   " + job.waiting_for;
  if (text == progress_) return;
  progress_ = std::move(text);
  if (terminal_) {
    constexpr std::size_t kColumns = 100;
    Print("\r\x1b[K" + progress_.substr(0, kColumns));
  } else if (now - shown_at_ >= kPipeInterval) {
    shown_at_ = now;
    shown_ = progress_;
    Print(progress_ + "\n");
  }
}

void Console::EndProgress() {
  if (progress_.empty()) return;
  if (terminal_) {
    Print("\n");
  } else if (shown_ != progress_) {
    Print(progress_ + "\n");
  }
  progress_.clear();
  shown_.clear();
  shown_at_ = Instant();
}

void Console::Incident(const IncidentStatus& incident, double detect_ms) {
  Event(fmt::format("incident {}: {}, generation {} to {}, {} to {} workers", incident.number,
                    incident.cause, incident.from, incident.to, incident.world_before,
                    incident.world_after));
  for (const BlameStatus& blame : incident.blamed) {
    Line(fmt::format("  blamed    {} ({}): {}", blame.worker, blame.cause, blame.evidence));
  }
  double total = detect_ms;
  std::string phases = fmt::format("detect {:.1f}", detect_ms);
  for (const char* phase : {"abort", "ready", "form", "restore", "first_step"}) {
    total += PhaseOf(incident, phase);
    phases += fmt::format(", {} {:.1f}", phase, PhaseOf(incident, phase));
  }
  Line(fmt::format("  phases    {} ms; {:.1f} ms in all", phases, total));
  Line(fmt::format(
      "  state     at step {}, from {}", incident.restored_step,
      incident.restored_from == "live" ? "the survivors' memory" : incident.restored_from));
  if (incident.steps_redone > 0) {
    Line(
        fmt::format("  redone    {} steps: those after step {} were lost with the shard of the "
                    "dead worker",
                    incident.steps_redone, incident.restored_step));
  }
}

void Console::Verdict(const Finding& finding) {
  const std::string mark = finding.skipped ? Paint(kYellow, "open  ")
                           : finding.ok    ? Paint(kGreen, "holds ")
                                           : Paint(kRed, "BROKEN");
  Line(fmt::format("  {} {:<26} {}", mark, finding.name, finding.evidence));
}

void Console::Result(bool ok, std::string_view text) { Line(Paint(ok ? kGreen : kRed, text)); }

}  // namespace muster::chaos
