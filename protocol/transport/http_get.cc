#include "protocol/transport/http_get.h"

#include <fmt/format.h>

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <exception>
#include <optional>

#include "protocol/limits.h"
#include "protocol/transport/dialer.h"

namespace muster {
namespace {

namespace http = boost::beast::http;

constexpr std::uint64_t kMaxBodyBytes = std::uint64_t{256} << 20U;

Status StatusOf(const http::response<http::string_body>& response, const std::string& url,
                const std::string& asked) {
  std::string text = response.body().substr(0, kMaxReasonBytes);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.empty()) text = std::string(response.reason());
  const std::string message = fmt::format("musterd at {}: {}", url, text);
  switch (response.result()) {
    case http::status::not_found: return NotFound(message);
    case http::status::bad_request: return InvalidArgument(message);
    case http::status::unauthorized:
    case http::status::forbidden:
      return PermissionDenied(message +
                              ": set MUSTER_TOKEN to the content of the token file of musterd");
    case http::status::service_unavailable: return Unavailable(message);
    default:
      return FailedPrecondition(
          fmt::format("{} answers {} with HTTP {} ({}): is it a Muster coordinator?", url, asked,
                      response.result_int(), text));
  }
}

// One request on its own io_context; what it holds lives until the answer is there.
class Call {
 public:
  Call(http::verb verb, std::string url, const std::string& target, const std::string& host,
       const std::string& token)
      : url_(std::move(url)),
        asked_(fmt::format("{} {}", std::string_view(http::to_string(verb)), target)) {
    request_.version(11);
    request_.method(verb);
    request_.target(target);
    if (verb == http::verb::post) request_.set(http::field::content_length, "0");
    request_.set(http::field::host, host);
    request_.set(http::field::user_agent, "muster");
    request_.set(http::field::connection, "close");
    if (!token.empty()) request_.set(http::field::authorization, "Bearer " + token);
    parser_.body_limit(kMaxBodyBytes);
  }

  void Exchange(Socket connected) {
    socket_.emplace(std::move(connected));
    http::async_write(*socket_, request_, [this](const ErrorCode& error, std::size_t) {
      if (error) {
        Lost(error);
        return;
      }
      http::async_read(*socket_, buffer_, parser_, [this](const ErrorCode& failed, std::size_t) {
        if (failed) {
          Lost(failed);
        } else if (parser_.get().result() == http::status::ok) {
          result = std::move(parser_.get().body());
        } else {
          result = StatusOf(parser_.get(), url_, asked_);
        }
      });
    });
  }

  std::optional<Result<std::string>> result;

 private:
  void Lost(const ErrorCode& error) {
    const bool not_http =
        error.category() == make_error_code(http::error::bad_version).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message;
    if (not_http) {
      result = FailedPrecondition(fmt::format(
          "{} does not speak HTTP ({}): check the coordinator URL", url_, error.message()));
    } else {
      result =
          Unavailable(fmt::format("musterd at {}: connection lost: {}", url_, error.message()));
    }
  }

  const std::string url_;
  const std::string asked_;  // "GET /v1/jobs"
  http::request<http::empty_body> request_;
  http::response_parser<http::string_body> parser_;
  boost::beast::flat_buffer buffer_;
  std::optional<Socket> socket_;
};

Result<std::string> Ask(http::verb verb, const std::string& url, const std::string& target,
                        const std::string& token, Duration timeout) {
  const Result<HostPort> address = ParseUrl(url);
  if (!address.ok()) return address.status();
  try {
    // Destroyed last: a socket must not outlive its context. Handlers that are left then are
    // dropped without a call.
    IoContext io(1);
    Call call(verb, url, target, address->ToString(), token);
    AsyncConnect(io, *address, "musterd at " + url, timeout, [&call](Result<Socket> socket) {
      if (socket.ok()) {
        call.Exchange(std::move(socket).value());
      } else {
        call.result = socket.status();
      }
    });
    io.run_for(std::chrono::nanoseconds(timeout.nanos()) + std::chrono::milliseconds(100));
    if (call.result) return std::move(*call.result);
  } catch (const std::exception& error) {
    return Internal(fmt::format("asking musterd at {}: {}", url, error.what()));
  }
  return Unavailable(
      fmt::format("musterd at {}: no answer within {:.1f} s", url, timeout.ToSeconds()));
}

}  // namespace

Result<std::string> HttpGet(const std::string& url, const std::string& target,
                            const std::string& token, Duration timeout) {
  return Ask(http::verb::get, url, target, token, timeout);
}

Result<std::string> HttpPost(const std::string& url, const std::string& target,
                             const std::string& token, Duration timeout) {
  return Ask(http::verb::post, url, target, token, timeout);
}

}  // namespace muster
