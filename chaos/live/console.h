// What a person sees of a run: lines, and one line of progress that a terminal rewrites in place.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "chaos/live/checks.h"
#include "chaos/live/status.h"
#include "protocol/time.h"

namespace muster::chaos {

// Writes to stdout. Colour and rewriting only on a terminal; NO_COLOR turns colour off. In a pipe
// progress is a line every second.
class Console {
 public:
  Console();
  // A line that stays.
  void Line(std::string_view text);
  // Headings, good and bad news: a line that stays, in its colour.
  void Heading(std::string_view text);
  void Event(std::string_view text);
  // "training   step  57 of 200   loss 2.7134   4 workers   generation 1"
  void Progress(std::string_view label, const JobStatus& job, std::int64_t steps);
  // Ends the line of progress, so that what follows starts a new one; shows its last state in a
  // pipe too.
  void EndProgress();
  void Incident(const IncidentStatus& incident, double detect_ms);
  void Verdict(const Finding& finding);
  void Result(bool ok, std::string_view text);

 private:
  [[nodiscard]] std::string Paint(std::string_view colour, std::string_view text) const;
  void ClearProgress();

  bool terminal_ = false;
  bool colour_ = false;
  std::string progress_;  // its present text
  std::string shown_;     // the last one that a pipe has seen
  Instant shown_at_;
};

}  // namespace muster::chaos
