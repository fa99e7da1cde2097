// The HTTP interface: a function from a request to its answer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/describe.h"
#include "coordinator/core/input.h"
#include "protocol/status.h"
#include "protocol/transport/http_connection.h"

namespace muster::coordinator {

// What the answers are made of.
struct ApiSource {
  std::function<std::vector<JobName>()> jobs;
  std::function<std::optional<JobView>(const JobName&)> describe;
  std::function<std::string(const JobName&, std::int64_t since)> events;
  std::function<std::string()> metrics;
  std::function<Status()> ready;
  std::function<void(const Drain&)> drain;
  std::function<void(const ForceAdopt&)> adopt;
  std::string token;  // empty: none is asked for
};

inline constexpr std::string_view kSessionPath = "/v1/session";

// GET /livez, /readyz (both without a token), /v1/jobs, /v1/jobs/{job}, /v1/jobs/{job}/events
// (?since=N), /metrics. POST /v1/jobs/{job}/drain?node=N&worker=W&within_ms=T&undo=1 (see Drain:
// one of node and worker at least) and /v1/jobs/{job}/adopt (see ForceAdopt): parameters stand in
// the path, a body is not read. Answers are JSON, or Prometheus text; errors are one line of text:
// 400, 401, 404 (an unknown job names those there are), 405, 426 for the session path without a
// WebSocket, 503 from /readyz with the reason.
[[nodiscard]] HttpResponse Respond(const HttpRequest& request, const ApiSource& source);

// For requests that ask for a WebSocket: nothing when it is for the session path and the token is
// right.
[[nodiscard]] std::optional<HttpResponse> RefuseUpgrade(const HttpRequest& request,
                                                        std::string_view token);

// "Bearer TOKEN". Takes the same time whichever character differs. True when `token` is empty.
[[nodiscard]] bool Authorized(std::string_view authorization, std::string_view token);

}  // namespace muster::coordinator
