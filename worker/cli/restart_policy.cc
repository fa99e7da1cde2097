#include "worker/cli/restart_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "protocol/check.h"

namespace muster::cli {

std::string ExitState::ToString() const {
  if (signal == 0) return fmt::format("exited with code {}", code);
  const char* name = sigabbrev_np(signal);
  return fmt::format("killed by signal {} ({}{}){}", signal, name != nullptr ? "SIG" : "",
                     name != nullptr ? name : "unnamed", core_dumped ? ", core dumped" : "");
}

std::string ExitState::Remedy() const {
  switch (signal) {
    case 0: break;
    case SIGKILL: return "someone killed it, or the machine ran out of memory (see `dmesg`)";
    case SIGTERM:
    case SIGINT:
      return "it does not handle the request to stop; call RequestLeave() on this signal to leave "
             "at a step boundary";
    default:
      return "its last output says what it was doing; a core dump (`ulimit -c unlimited`) shows "
             "where";
  }
  if (code == 0) return "";
  if (code == 126 || code == 127) return "check the program's path and permissions";
  return "its last output says why";
}

std::string RestartPolicy::Problem() const {
  if (max_restarts < 0) return "--max-restarts must be 0 or more";
  if (window <= Duration()) return "--restart-window must be more than 0";
  if (first_pause < Duration()) return "--restart-pause must not be negative";
  if (max_pause < first_pause) {
    return fmt::format("--restart-pause must be at most {}", DurationText(max_pause));
  }
  return "";
}

RestartDecision DecideRestart(const RestartPolicy& policy, const std::vector<Instant>& failures,
                              Instant now) {
  MUSTER_CHECK(!failures.empty(), "there is a failure to decide about");
  RestartDecision decision;
  decision.failures = static_cast<int>(std::count_if(
      failures.begin(), failures.end(), [&](Instant at) { return now - at < policy.window; }));
  decision.restart = decision.failures <= policy.max_restarts;
  if (!decision.restart) return decision;
  decision.pause = policy.first_pause;
  for (int i = 1; i < decision.failures && decision.pause < policy.max_pause; ++i) {
    decision.pause = decision.pause * 2;
  }
  decision.pause = std::min(decision.pause, policy.max_pause);
  return decision;
}

std::string DurationText(Duration duration) {
  if (duration.nanos() % 1'000'000'000 == 0) {
    return fmt::format("{} s", duration.nanos() / 1'000'000'000);
  }
  if (duration < Duration::Seconds(1)) return fmt::format("{} ms", duration.millis());
  return fmt::format("{:.1f} s", duration.ToSeconds());
}

}  // namespace muster::cli
