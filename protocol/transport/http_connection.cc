#include "protocol/transport/http_connection.h"

#include <fmt/format.h>

#include <boost/asio/buffers_iterator.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <chrono>
#include <utility>

namespace muster {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr std::uint32_t kMaxHeaderBytes = 8192;
constexpr std::uint64_t kMaxBodyBytes = 65536;

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(Socket socket, std::shared_ptr<const HttpService> service)
      : socket_(std::move(socket)), timer_(socket_.get_executor()), service_(std::move(service)) {}

  void Run(TaskGroup& group) {
    ticket_ = group.Enter([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->Close();
    });
    Read(kRequestTimeout);
  }

 private:
  void Read(Duration limit) {
    parser_.emplace();
    parser_->header_limit(kMaxHeaderBytes);
    parser_->body_limit(kMaxBodyBytes);
    Arm(limit);
    http::async_read(
        socket_, buffer_, *parser_,
        [self = shared_from_this()](const ErrorCode& error, std::size_t) { self->OnRead(error); });
  }

  void Arm(Duration limit) {
    timer_.expires_after(std::chrono::nanoseconds(limit.nanos()));
    timer_.async_wait([self = shared_from_this()](const ErrorCode& cancelled) {
      // A wait that ended just before it was renewed comes here without an error.
      if (!cancelled && self->timer_.expiry() <= std::chrono::steady_clock::now()) self->Close();
    });
  }

  void OnRead(const ErrorCode& error) {
    if (error) {
      const bool lost = error == http::error::end_of_stream || error.category() != http_category();
      if (lost) {
        Close();
      } else {
        HttpResponse response;
        response.status = 400;
        response.body = fmt::format("not a request that is understood: {}\n", error.message());
        Write(response, false);
      }
      return;
    }
    const auto& message = parser_->get();
    HttpRequest request;
    request.method = std::string(message.method_string());
    request.target = std::string(message.target());
    request.authorization = std::string(message[http::field::authorization]);
    if (beast::websocket::is_upgrade(message)) {
      if (const std::optional<HttpResponse> refusal = service_->refuse_upgrade(request)) {
        Write(*refusal, false);
      } else {
        Upgrade();
      }
      return;
    }
    Write(service_->respond(request), message.keep_alive());
  }

  // Hands the socket on, with the handshake in the few words that matter and whatever the client
  // has sent after it.
  void Upgrade() {
    const auto& message = parser_->get();
    const auto field = [&message](http::field name) {
      return std::string(std::string_view(message[name].data(), message[name].size()));
    };
    std::string head = fmt::format(
        "GET / HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Key: {}\r\nSec-WebSocket-Version: {}\r\n\r\n",
        field(http::field::host), field(http::field::sec_websocket_key),
        field(http::field::sec_websocket_version));
    const auto rest = buffer_.cdata();
    head.append(static_cast<const char*>(rest.data()), rest.size());
    timer_.cancel();
    AsyncAccept(std::move(socket_), head,
                [self = shared_from_this()](Result<std::shared_ptr<Channel>> channel) {
                  if (channel.ok()) self->service_->on_channel(std::move(channel).value());
                });
  }

  void Write(const HttpResponse& answer, bool keep_alive) {
    response_.emplace();
    response_->version(11);
    response_->result(static_cast<unsigned>(answer.status));
    response_->set(http::field::server, "musterd");
    response_->set(http::field::content_type, answer.content_type);
    response_->set(http::field::cache_control, "no-store");
    if (!answer.allow.empty()) response_->set(http::field::allow, answer.allow);
    if (answer.status == 401) response_->set(http::field::www_authenticate, "Bearer");
    response_->keep_alive(keep_alive);
    response_->body() = answer.body;
    response_->prepare_payload();
    Arm(kIdleTimeout);
    http::async_write(socket_, *response_,
                      [self = shared_from_this(), keep_alive](const ErrorCode& error, std::size_t) {
                        if (error || !keep_alive) {
                          self->Close();
                        } else {
                          self->Read(kIdleTimeout);
                        }
                      });
  }

  void Close() {
    timer_.cancel();
    ErrorCode ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
    socket_.close(ignored);
  }

  static const boost::system::error_category& http_category() {
    return make_error_code(http::error::bad_version).category();
  }

  Socket socket_;
  Timer timer_;
  const std::shared_ptr<const HttpService> service_;
  TaskGroup::Ticket ticket_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  std::optional<http::response<http::string_body>> response_;
};

}  // namespace

void ServeHttp(Socket socket, std::shared_ptr<const HttpService> service, TaskGroup& group) {
  std::make_shared<HttpConnection>(std::move(socket), std::move(service))->Run(group);
}

}  // namespace muster
