#include "worker/cli/drain_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "protocol/transport/http_get.h"
#include "protocol/transport/steady_clock.h"

namespace muster::cli {
namespace {

constexpr Duration kTimeout = Duration::Seconds(10);
constexpr int kLookIntervalMs = 200;

int Fail(const std::string& message) {
  fmt::print(stderr, "muster: {}\n", message);
  return 1;
}

std::string PlaceText(const DrainOptions& options) {
  if (options.worker.empty()) return fmt::format("node {}", options.node);
  if (options.node.empty()) return fmt::format("worker {}", options.worker);
  return fmt::format("worker {} on node {}", options.worker, options.node);
}

// Members of the place, by name.
Result<std::vector<std::string>> MembersAt(const DrainOptions& options) {
  const Result<std::string> body =
      HttpGet(options.query.coordinator, "/v1/jobs/" + Escape(options.query.job),
              options.query.token, kTimeout);
  if (!body.ok()) return body.status();
  std::vector<std::string> members;
  const nlohmann::json job = nlohmann::json::parse(*body, nullptr, false);
  if (!job.is_object() || !job.contains("workers")) return DataLoss("not the status of a job");
  for (const nlohmann::json& worker : job["workers"]) {
    const bool there = (options.node.empty() || worker.value("node", "") == options.node) &&
                       (options.worker.empty() || worker.value("worker", "") == options.worker);
    if (there && worker.value("role", "") == "member") {
      members.push_back(worker.value("worker", ""));
    }
  }
  return members;
}

int Await(const DrainOptions& options) {
  const Instant deadline = MonotonicNow() + options.timeout;
  const bool terminal = isatty(STDERR_FILENO) == 1;
  std::string shown;
  while (true) {
    const Result<std::vector<std::string>> members = MembersAt(options);
    const bool passing = members.status().code() == Code::kUnavailable;
    if (!members.ok() && !passing) return Fail(members.status().message());
    const std::string line = members.ok()
                                 ? fmt::format("waiting for {} to leave", fmt::join(*members, ", "))
                                 : members.status().message();
    if (members.ok() && members->empty()) {
      if (terminal && !shown.empty()) fmt::print(stderr, "\r\x1b[K");
      fmt::print("{}: no worker of it is a member any more\n", PlaceText(options));
      return 0;
    }
    if (line != shown)
      fmt::print(stderr, "{}{}{}", terminal ? "\r\x1b[K" : "", line, terminal ? "" : "\n");
    shown = line;
    if (MonotonicNow() > deadline) {
      return Fail(fmt::format(
          "{}not within {:.0f} s: {}; it is drained as soon as they come to a "
          "step boundary, see `muster status {}`",
          terminal ? "\r\x1b[K" : "", options.timeout.ToSeconds(), line, options.query.job));
    }
    poll(nullptr, 0, kLookIntervalMs);
  }
}

}  // namespace

int RunDrain(const DrainOptions& options) {
  if (options.query.job.empty()) return Fail("name the job: muster drain JOB --node NODE");
  if (options.node.empty() && options.worker.empty()) {
    return Fail("say what to drain: --node NODE, --worker WORKER, or both");
  }
  if (options.undo && options.wait) return Fail("--wait waits for a drain, not for its --undo");
  std::string target =
      fmt::format("/v1/jobs/{}/drain?undo={}", Escape(options.query.job), options.undo ? 1 : 0);
  if (!options.node.empty()) target += "&node=" + Escape(options.node);
  if (!options.worker.empty()) target += "&worker=" + Escape(options.worker);
  if (options.within > Duration()) {
    target += fmt::format("&within_ms={}", options.within.millis());
  }
  const Result<std::string> answer =
      HttpPost(options.query.coordinator, target, options.query.token, kTimeout);
  if (!answer.ok()) return Fail(answer.status().message());
  const std::string place = PlaceText(options);
  if (options.undo) {
    fmt::print("{} is welcome again: workers that wait there are taken at the next growth\n",
               place);
    return 0;
  }
  fmt::print(
      "{} is drained: its members leave at the next step boundary, and none there is taken "
      "until `muster drain {} … --undo`\n",
      place, options.query.job);
  std::fflush(stdout);
  return options.wait ? Await(options) : 0;
}

int RunAdopt(const QueryOptions& options, bool yes) {
  if (options.job.empty()) return Fail("name the job: muster adopt JOB --yes");
  if (!yes) {
    return Fail(fmt::format(
        "the members of job {} that musterd cannot see may train on: all that they do is void "
        "then, "
        "and the others go on from what they hold or from a checkpoint. Make sure that they are "
        "dead, or that this is what you want, and say --yes",
        options.job));
  }
  const Result<std::string> answer =
      HttpPost(options.coordinator, fmt::format("/v1/jobs/{}/adopt", Escape(options.job)),
               options.token, kTimeout);
  if (!answer.ok()) return Fail(answer.status().message());
  fmt::print("job {} goes on without the members that are out of sight\n", options.job);
  return 0;
}

}  // namespace muster::cli
