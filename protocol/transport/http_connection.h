// The server's side of one TCP connection: answers HTTP requests, and becomes a Channel when one
// asks for a WebSocket.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "protocol/time.h"
#include "protocol/transport/channel.h"
#include "protocol/transport/net.h"
#include "protocol/transport/task_group.h"

namespace muster {

struct HttpRequest {
  std::string method;  // "GET"
  std::string target;  // "/v1/jobs?x=1", as sent
  std::string authorization;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::string allow;  // for 405: "GET"
};

// What a server does with requests; called on the thread of its io_context.
struct HttpService {
  // A pure function from request to answer, as far as this file is concerned. Must not block.
  std::function<HttpResponse(const HttpRequest&)> respond;
  // For a request that asks for a WebSocket: nothing when it may have one, else the refusal.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> refuse_upgrade;
  // The WebSocket stands; it has not been started.
  std::function<void(std::shared_ptr<Channel>)> on_channel;
};

// How long a client may take over its first request, and over each later one on the same
// connection. Whatever it sends, a connection costs a few KiB and ends in that time.
inline constexpr Duration kRequestTimeout = Duration::Seconds(5);
inline constexpr Duration kIdleTimeout = Duration::Seconds(30);

// Serves the connection until it ends, as a task of `group`. Whatever is no HTTP gets a 400 and is
// closed.
void ServeHttp(Socket socket, std::shared_ptr<const HttpService> service, TaskGroup& group);

}  // namespace muster
