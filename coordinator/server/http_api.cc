#include "coordinator/server/http_api.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "coordinator/server/job_json.h"
#include "protocol/codec_json.h"

namespace muster::coordinator {
namespace {

constexpr std::string_view kJobsPath = "/v1/jobs";
constexpr std::string_view kEventsSuffix = "/events";
constexpr std::size_t kNamedJobs = 20;
constexpr std::size_t kMaxTargetBytes = 1024;

HttpResponse Error(int status, std::string text) {
  HttpResponse response;
  response.status = status;
  response.body = std::move(text) + "\n";
  return response;
}

HttpResponse JsonAnswer(std::string body) {
  HttpResponse response;
  response.content_type = "application/json";
  response.body = std::move(body);
  if (response.body.empty() || response.body.back() != '\n') response.body += '\n';
  return response;
}

HttpResponse Unauthorized() {
  return Error(401,
               "a token is needed: send 'Authorization: Bearer TOKEN' with the content of the file "
               "that musterd was given with --token-file");
}

// "%3A" -> ":"; nothing when a '%' is not followed by two hexadecimal digits.
std::optional<std::string> PercentDecode(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    unsigned char byte = 0;
    const char* digits = text.data() + i + 1;
    if (i + 2 >= text.size()) return std::nullopt;
    const auto [end, error] = std::from_chars(digits, digits + 2, byte, 16);
    if (error != std::errc() || end != digits + 2) return std::nullopt;
    decoded += static_cast<char>(byte);
    i += 2;
  }
  return decoded;
}

// "a=1&b=x%20y" as names and values; nothing when a '%' is not followed by two digits, or a name
// comes twice.
std::optional<std::map<std::string, std::string>> ParametersOf(std::string_view query) {
  std::map<std::string, std::string> parameters;
  while (!query.empty()) {
    const std::size_t end = query.find('&');
    const std::string_view pair = query.substr(0, end);
    query = end == std::string_view::npos ? std::string_view() : query.substr(end + 1);
    const std::size_t equals = pair.find('=');
    const auto name = PercentDecode(pair.substr(0, equals));
    const auto value = PercentDecode(equals == std::string_view::npos ? std::string_view()
                                                                      : pair.substr(equals + 1));
    if (!name || !value || !parameters.emplace(*name, *value).second) return std::nullopt;
  }
  return parameters;
}

// The value of `since` in "a=1&since=5"; 0 when it is not there, nothing when it is no number.
std::optional<std::int64_t> SinceOf(std::string_view query) {
  while (!query.empty()) {
    const std::size_t end = query.find('&');
    const std::string_view pair = query.substr(0, end);
    query = end == std::string_view::npos ? std::string_view() : query.substr(end + 1);
    if (pair.substr(0, 6) != "since=") continue;
    const std::string_view text = pair.substr(6);
    std::int64_t since = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), since);
    if (error != std::errc() || stop != text.data() + text.size() || since < 0) return std::nullopt;
    return since;
  }
  return 0;
}

HttpResponse UnknownJob(const std::string& job, const ApiSource& source) {
  const std::vector<JobName> jobs = source.jobs();
  if (jobs.empty()) {
    return Error(404, fmt::format("no job {}: there are none yet; the first worker that comes "
                                  "creates its job",
                                  codec::Quoted(job)));
  }
  std::string names;
  for (std::size_t i = 0; i < jobs.size() && i < kNamedJobs; ++i) {
    names += (i == 0 ? "" : ", ") + jobs[i].value();
  }
  if (jobs.size() > kNamedJobs) names += fmt::format(" and {} more", jobs.size() - kNamedJobs);
  return Error(404, fmt::format("no job {}: the jobs here are {}", codec::Quoted(job), names));
}

// With why decisions cannot be made durable, as long as that is so.
HttpResponse JsonAnswer(nlohmann::json object, const ApiSource& source) {
  if (const Status ready = source.ready(); !ready.ok()) object["not_ready"] = ready.message();
  return JsonAnswer(codec::Dump(object));
}

HttpResponse ListJobs(const ApiSource& source) {
  nlohmann::json list = nlohmann::json::array();
  for (const JobName& job : source.jobs()) {
    if (const std::optional<JobView> view = source.describe(job)) {
      list.push_back(SummaryJson(*view));
    }
  }
  return JsonAnswer({{"jobs", std::move(list)}}, source);
}

// `rest` is what follows "/v1/jobs/".
HttpResponse OneJob(std::string_view rest, std::string_view query, const ApiSource& source) {
  const bool events = rest.ends_with(kEventsSuffix);
  if (events) rest.remove_suffix(kEventsSuffix.size());
  const std::optional<std::string> name = PercentDecode(rest);
  if (!name || name->find('/') != std::string::npos) {
    return Error(400, fmt::format("{} is no job name", codec::Quoted(rest)));
  }
  const JobName job(*name);
  const std::optional<JobView> view = source.describe(job);
  if (!view) return UnknownJob(*name, source);
  if (!events) return JsonAnswer(JobJson(*view, ReadClocks()), source);
  const std::optional<std::int64_t> since = SinceOf(query);
  if (!since) return Error(400, "since: must be a number, as in ?since=17");
  return JsonAnswer(source.events(job, *since));
}

// The command in the parameters; an error names the one that is wrong.
Result<Drain> DrainOf(const JobName& job, const std::map<std::string, std::string>& parameters) {
  Drain drain;
  drain.job = job;
  for (const auto& [name, value] : parameters) {
    if (name == "node" || name == "worker") {
      if (value.empty() || !IsName(value)) {
        return InvalidArgument(fmt::format("{}: {} is no name", name, codec::Quoted(value)));
      }
      if (name == "node") drain.node = NodeName(value);
      if (name == "worker") drain.worker = WorkerId(value);
    } else if (name == "within_ms") {
      std::int64_t millis = 0;
      const char* end = value.data() + value.size();
      const auto [stop, error] = std::from_chars(value.data(), end, millis);
      constexpr std::int64_t kMost = 86'400'000;
      if (error != std::errc() || stop != end || millis < 1 || millis > kMost) {
        return InvalidArgument(fmt::format("within_ms: must be a number from 1 to {}", kMost));
      }
      drain.within = Duration::Millis(millis);
    } else if (name == "undo" && (value == "1" || value == "0")) {
      drain.undo = value == "1";
    } else {
      return InvalidArgument(
          fmt::format("{}={}: there are node, worker, within_ms and undo (0 or 1)", name, value));
    }
  }
  if (drain.node.value().empty() && drain.worker.value().empty()) {
    return InvalidArgument("name a node, a worker, or a worker on a node");
  }
  return drain;
}

// `rest` is what follows "/v1/jobs/".
HttpResponse Command(std::string_view rest, std::string_view query, const ApiSource& source) {
  constexpr std::string_view kDrain = "/drain";
  constexpr std::string_view kAdopt = "/adopt";
  const bool drains = rest.ends_with(kDrain);
  if (!drains && !rest.ends_with(kAdopt)) {
    return Error(404, "there is nothing to POST but /v1/jobs/JOB/drain and /v1/jobs/JOB/adopt");
  }
  rest.remove_suffix(drains ? kDrain.size() : kAdopt.size());
  const std::optional<std::string> name = PercentDecode(rest);
  if (!name || name->find('/') != std::string::npos) {
    return Error(400, fmt::format("{} is no job name", codec::Quoted(rest)));
  }
  const JobName job(*name);
  const std::optional<JobView> view = source.describe(job);
  if (!view) return UnknownJob(*name, source);
  if (view->end) return Error(409, fmt::format("job {} has ended", *name));
  const auto parameters = ParametersOf(query);
  if (!parameters) return Error(400, "the parameters are not of the form a=1&b=2, each once");
  if (drains) {
    const Result<Drain> drain = DrainOf(job, *parameters);
    if (!drain.ok()) return Error(400, drain.status().message());
    source.drain(*drain);
  } else {
    if (!parameters->empty()) return Error(400, "adopt takes no parameters");
    source.adopt(ForceAdopt{job});
  }
  return JsonAnswer({{"accepted", true}}, source);
}

}  // namespace

bool Authorized(std::string_view authorization, std::string_view token) {
  if (token.empty()) return true;
  constexpr std::string_view kPrefix = "Bearer ";
  if (authorization.substr(0, kPrefix.size()) != kPrefix) return false;
  const std::string_view offered = authorization.substr(kPrefix.size());
  // Every character of the offer is looked at, so that the time tells nothing about the token.
  unsigned difference = offered.size() == token.size() ? 0U : 1U;
  for (std::size_t i = 0; i < offered.size(); ++i) {
    difference |= static_cast<unsigned char>(offered[i]) ^
                  static_cast<unsigned>(static_cast<unsigned char>(token[i % token.size()]));
  }
  return difference == 0;
}

HttpResponse Respond(const HttpRequest& request, const ApiSource& source) {
  const std::string_view target = request.target;
  if (target.size() > kMaxTargetBytes) return Error(400, "the path is too long");
  const std::size_t mark = target.find('?');
  std::string_view path = target.substr(0, mark);
  const std::string_view query =
      mark == std::string_view::npos ? std::string_view() : target.substr(mark + 1);
  if (request.method == "POST" && path.starts_with("/v1/jobs/")) {
    if (!Authorized(request.authorization, source.token)) return Unauthorized();
    return Command(path.substr(kJobsPath.size() + 1), query, source);
  }
  if (request.method != "GET") {
    HttpResponse response = Error(
        405, fmt::format("{} is not for {}: only GET is", request.method, codec::Quoted(path)));
    response.allow = "GET";
    return response;
  }
  if (path == "/livez") return Error(200, "ok");
  if (path == "/readyz") {
    const Status ready = source.ready();
    return ready.ok() ? Error(200, "ok") : Error(503, ready.message());
  }
  if (!Authorized(request.authorization, source.token)) return Unauthorized();
  if (path == "/metrics") {
    HttpResponse response;
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = source.metrics();
    return response;
  }
  if (path == kSessionPath) {
    HttpResponse response = Error(426, "this path is for the WebSocket of workers and launchers");
    return response;
  }
  if (path == kJobsPath || path == "/v1/jobs/") return ListJobs(source);
  if (path.size() > kJobsPath.size() && path.starts_with(kJobsPath) &&
      path[kJobsPath.size()] == '/') {
    return OneJob(path.substr(kJobsPath.size() + 1), query, source);
  }
  return Error(404, fmt::format("nothing at {}: there are /livez, /readyz, /metrics, /v1/jobs, "
                                "/v1/jobs/JOB and /v1/jobs/JOB/events?since=N",
                                codec::Quoted(path)));
}

std::optional<HttpResponse> RefuseUpgrade(const HttpRequest& request, std::string_view token) {
  if (!Authorized(request.authorization, token)) return Unauthorized();
  if (std::string_view(request.target).substr(0, request.target.find('?')) != kSessionPath) {
    return Error(404, fmt::format("no WebSocket at {}: it is at {}", codec::Quoted(request.target),
                                  kSessionPath));
  }
  return std::nullopt;
}

}  // namespace muster::coordinator
