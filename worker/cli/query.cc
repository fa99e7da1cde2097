#include "worker/cli/query.h"

#include <fmt/format.h>
#include <poll.h>

#include <cstdio>
#include <string_view>
#include <vector>

#include "protocol/status.h"
#include "protocol/transport/http_get.h"
#include "worker/cli/status_view.h"

namespace muster::cli {
namespace {

constexpr Duration kTimeout = Duration::Seconds(10);
constexpr int kStatusIntervalMs = 1000;
constexpr int kEventsIntervalMs = 300;

Result<std::string> Get(const QueryOptions& options, const std::string& target) {
  return HttpGet(options.coordinator, target, options.token, kTimeout);
}

int Fail(const Status& status) {
  fmt::print(stderr, "muster: {}\n", status.message());
  return 1;
}

Result<std::string> StatusText(const QueryOptions& options) {
  if (!options.job.empty()) {
    const Result<std::string> body = Get(options, "/v1/jobs/" + Escape(options.job));
    if (!body.ok() || options.json) return body;
    return RenderJob(*body);
  }
  const Result<std::string> body = Get(options, "/v1/jobs");
  if (!body.ok() || options.json) return body;
  const auto names = JobNames(*body);
  if (!names.ok()) return names.status();
  if (names->size() != 1) return RenderJobs(*body);
  // The only job there is must be the one that is meant.
  QueryOptions one = options;
  one.job = names->front();
  return StatusText(one);
}

void Print(std::string_view text) {
  fmt::print("{}{}", text, text.empty() || text.back() == '\n' ? "" : "\n");
  std::fflush(stdout);
}

}  // namespace

std::string Escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~").find(c) != std::string_view::npos;
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

int RunStatus(const QueryOptions& options) {
  for (bool first = true;; first = false) {
    const Result<std::string> text = StatusText(options);
    const bool passing = !first && text.status().code() == Code::kUnavailable;
    if (!text.ok() && !passing) return Fail(text.status());
    if (options.repeat && !options.json) fmt::print("\x1b[H\x1b[2J");
    Print(text.ok() ? *text : text.status().message());
    if (!options.repeat) return 0;
    poll(nullptr, 0, kStatusIntervalMs);
  }
}

int RunEvents(const QueryOptions& options) {
  std::int64_t since = options.since;
  for (bool first = true;; first = false) {
    const Result<std::string> body =
        Get(options, fmt::format("/v1/jobs/{}/events?since={}", Escape(options.job), since));
    if (!body.ok()) {
      if (first || body.status().code() != Code::kUnavailable) {
        return Fail(body.status());
      }
    } else {
      const Result<EventLines> lines = RenderEvents(*body);
      if (!lines.ok()) return Fail(lines.status());
      const bool news = !lines->text.empty();
      if (options.json ? (news || !options.repeat) : news) {
        Print(options.json ? *body : lines->text);
      }
      since = lines->next;
    }
    if (!options.repeat) return 0;
    poll(nullptr, 0, kEventsIntervalMs);
  }
}

}  // namespace muster::cli
