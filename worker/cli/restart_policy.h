// Whether a worker that ended is started again. Pure: the time is passed in.
#pragma once

#include <string>
#include <vector>

#include "protocol/time.h"

namespace muster::cli {

// How a process ended.
struct ExitState {
  int code = 0;    // of exit(); 0 when it was killed
  int signal = 0;  // that killed it; 0 when it exited by itself
  bool core_dumped = false;

  [[nodiscard]] bool ok() const { return code == 0 && signal == 0; }
  // As a shell reports it: the code, or 128 + signal.
  [[nodiscard]] int ShellCode() const { return signal != 0 ? 128 + signal : code; }
  // "exited with code 3", "killed by signal 9 (SIGKILL)".
  [[nodiscard]] std::string ToString() const;
  // Where to look, or what to do about it: one clause. Empty when it ended well.
  [[nodiscard]] std::string Remedy() const;
};

// A budget for failures alone: workers that leave as planned, or exit with 0, do not touch it.
struct RestartPolicy {
  int max_restarts = 3;                          // per worker, within `window`; 0: never
  Duration window = Duration::Seconds(300);      // older failures are forgotten
  Duration first_pause = Duration::Millis(200);  // doubled by each further failure in the window
  Duration max_pause = Duration::Seconds(30);

  // Ok, or which value makes no sense, by the name of its flag.
  [[nodiscard]] std::string Problem() const;
};

struct RestartDecision {
  bool restart = false;
  Duration pause;    // before the restart
  int failures = 0;  // within the window, this one included
};

// What to do about the last of `failures` (instants in ascending order), which happened at `now`.
// REQUIRES: policy.Problem() is empty, `failures` is not.
[[nodiscard]] RestartDecision DecideRestart(const RestartPolicy& policy,
                                            const std::vector<Instant>& failures, Instant now);

// "200 ms", "1.5 s", "300 s".
[[nodiscard]] std::string DurationText(Duration duration);

}  // namespace muster::cli
