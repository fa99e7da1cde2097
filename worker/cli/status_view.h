// What a person sees of a job: text made from the JSON that the coordinator serves. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/status.h"

namespace muster::cli {

// All of these return kDataLoss when `json` is not what a coordinator would send. A missing field
// shows as "?", so that a newer or older coordinator can be asked too.

// The screen for GET /v1/jobs/{job}: phase, generation, members, what is waited for and why, the
// last incidents with their phases, checkpoints.
[[nodiscard]] Result<std::string> RenderJob(std::string_view json);

// One line for each job of GET /v1/jobs.
[[nodiscard]] Result<std::string> RenderJobs(std::string_view json);
// Their names.
[[nodiscard]] Result<std::vector<std::string>> JobNames(std::string_view json);

struct EventLines {
  std::string text;       // one line each; empty when there is none
  std::int64_t next = 0;  // what to ask for next: `since`
};
// GET /v1/jobs/{job}/events
[[nodiscard]] Result<EventLines> RenderEvents(std::string_view json);

}  // namespace muster::cli
