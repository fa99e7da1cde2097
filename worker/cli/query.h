// `muster status` and `muster events`: ask the coordinator over HTTP and print the answer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace muster::cli {

struct QueryOptions {
  std::string coordinator;  // URL
  std::string token;
  std::string job;         // empty: all (status alone)
  bool json = false;       // the coordinator's own answer instead of text
  bool repeat = false;     // status: again each second; events: as they come
  std::int64_t since = 0;  // events: from this number on
};

// Both print to stdout and return what the process should exit with: 0, or 1 after one line on
// stderr that names the thing and the remedy. With `repeat` they go on until a signal ends the
// process, and a coordinator that is away for a while is waited for.
[[nodiscard]] int RunStatus(const QueryOptions& options);
[[nodiscard]] int RunEvents(const QueryOptions& options);

// A path segment or a value in a query: everything but unreserved characters is escaped.
[[nodiscard]] std::string Escape(std::string_view text);

}  // namespace muster::cli
