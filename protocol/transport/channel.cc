#include "protocol/transport/channel.h"

#include <fmt/format.h>

#include <boost/asio/post.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/field.hpp>
#include <boost/beast/websocket/error.hpp>
#include <boost/beast/websocket/stream.hpp>
#include <chrono>
#include <deque>
#include <utility>

#include "protocol/limits.h"
#include "protocol/transport/sockets.h"

namespace muster {
namespace {

namespace beast = boost::beast;
namespace websocket = boost::beast::websocket;

// A read buffer that a large message has grown is given back.
constexpr std::size_t kKeptBufferBytes = std::size_t{16} << 10U;

Status StatusOfRead(const ErrorCode& error, const websocket::close_reason& reason) {
  if (error == websocket::error::closed) {
    const std::string_view text(reason.reason.data(), reason.reason.size());
    return Unavailable(text.empty() ? std::string("the peer closed the connection")
                                    : fmt::format("the peer closed the connection: {}", text));
  }
  if (error == websocket::error::message_too_big || error == websocket::error::buffer_overflow) {
    return InvalidArgument(fmt::format("message of more than {} bytes", kMaxMessageBytes));
  }
  if (error == websocket::condition::protocol_violation) {
    return InvalidArgument("not a WebSocket stream: " + error.message());
  }
  return Unavailable("connection lost: " + error.message());
}

class WebSocketChannel final : public Channel,
                               public std::enable_shared_from_this<WebSocketChannel> {
 public:
  [[nodiscard]] Executor executor() { return stream_.get_executor(); }

  explicit WebSocketChannel(Socket socket)
      : stream_(std::move(socket)), close_timer_(stream_.get_executor()) {
    ErrorCode error;
    const Tcp::endpoint peer = stream_.next_layer().remote_endpoint(error);
    if (!error) peer_address_ = AddressText(peer.address());
    const Tcp::endpoint local = stream_.next_layer().local_endpoint(error);
    if (!error) local_address_ = AddressText(local.address());
    stream_.read_message_max(kMaxMessageBytes);
    // One frame and one sendmsg per message: Beast's default cuts messages into 4 KiB frames.
    stream_.auto_fragment(false);
    stream_.text(true);
  }

  void Connect(const std::string& host, const std::string& path, const std::string& token,
               Duration timeout, ChannelResult done) {
    SetHandshakeTimeout(timeout);
    stream_.set_option(websocket::stream_base::decorator([token](websocket::request_type& request) {
      request.set(beast::http::field::user_agent, "muster");
      if (!token.empty()) request.set(beast::http::field::authorization, "Bearer " + token);
    }));
    const auto response = std::make_shared<websocket::response_type>();
    stream_.async_handshake(
        *response, host, path,
        [self = shared_from_this(), response, done = std::move(done)](const ErrorCode& error) {
          if (error) {
            self->CloseSocket();
            done(StatusOfHandshake(error, *response));
          } else {
            done(std::shared_ptr<Channel>(self));
          }
        });
  }

  void Accept(const std::string& head, ChannelResult done) {
    SetHandshakeTimeout(kHandshakeTimeout);
    stream_.set_option(websocket::stream_base::decorator([](websocket::response_type& response) {
      response.set(beast::http::field::server, "musterd");
    }));
    stream_.async_accept(net::buffer(head), [self = shared_from_this(),
                                             done = std::move(done)](const ErrorCode& error) {
      if (error) {
        self->CloseSocket();
        done(InvalidArgument("no WebSocket handshake: " + error.message()));
      } else {
        done(std::shared_ptr<Channel>(self));
      }
    });
  }

  void Start(OnMessage on_message, OnClosed on_closed) override {
    MUSTER_CHECK(!started_, "a channel is started once");
    started_ = true;
    on_message_ = std::move(on_message);
    on_closed_ = std::move(on_closed);
    if (finished_) {
      PostClosed();
    } else {
      Read();
    }
  }

  using Channel::Send;
  void Send(std::shared_ptr<const std::string> text) override {
    if (closing_ || finished_) return;
    if (queue_.size() >= kMaxQueuedMessages || queued_bytes_ + text->size() > kMaxQueuedBytes) {
      Finish(ResourceExhausted(
          fmt::format("cut off: the peer reads too slowly, {} messages of {} bytes wait for it",
                      queue_.size(), queued_bytes_)));
      return;
    }
    queued_bytes_ += text->size();
    queue_.push_back(std::move(text));
    if (!writing_) Write();
  }

  void Close() override {
    if (closing_ || finished_) return;
    closing_ = true;
    close_timer_.expires_after(std::chrono::nanoseconds(kCloseTimeout.nanos()));
    close_timer_.async_wait([self = shared_from_this()](const ErrorCode& error) {
      if (!error) self->Finish(Status());
    });
    if (!writing_) CloseInOrder();
  }

  void Abort(Status why) override { Finish(std::move(why)); }

  [[nodiscard]] const std::string& peer_address() const override { return peer_address_; }
  [[nodiscard]] const std::string& local_address() const override { return local_address_; }
  [[nodiscard]] int native_handle() override { return stream_.next_layer().native_handle(); }

 private:
  static Status StatusOfHandshake(const ErrorCode& error,
                                  const websocket::response_type& response) {
    if (error != websocket::error::upgrade_declined) {
      if (error == websocket::condition::handshake_failed ||
          error == beast::http::error::bad_version) {
        return FailedPrecondition("what listens there speaks no WebSocket: " + error.message());
      }
      return Unavailable("no answer to the handshake: " + error.message());
    }
    std::string text = response.body().substr(0, kMaxReasonBytes);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    std::string reason = fmt::format("HTTP {}: {}", response.result_int(), text);
    const bool denied = response.result() == beast::http::status::unauthorized ||
                        response.result() == beast::http::status::forbidden;
    if (denied) return PermissionDenied(std::move(reason));
    if (response.result() == beast::http::status::service_unavailable) {
      return Unavailable(std::move(reason));
    }
    return FailedPrecondition(std::move(reason));
  }

  // Idle connections stay: leases are judged above.
  void SetHandshakeTimeout(Duration timeout) {
    websocket::stream_base::timeout option{};
    option.handshake_timeout = std::chrono::nanoseconds(timeout.nanos());
    option.idle_timeout = websocket::stream_base::none();
    option.keep_alive_pings = false;
    stream_.set_option(option);
  }

  void Read() {
    stream_.async_read(buffer_, [self = shared_from_this()](const ErrorCode& error, std::size_t) {
      self->OnRead(error);
    });
  }

  void OnRead(const ErrorCode& error) {
    if (finished_) return;
    if (error) {
      Finish(closing_ ? Status() : StatusOfRead(error, stream_.reason()));
      return;
    }
    if (!stream_.got_text()) {
      Finish(InvalidArgument("binary message: only text is spoken here"));
      return;
    }
    if (!closing_) {
      const auto data = buffer_.cdata();
      on_message_(std::string_view(static_cast<const char*>(data.data()), data.size()));
      if (finished_) return;
    }
    buffer_.consume(buffer_.size());
    if (buffer_.capacity() > kKeptBufferBytes) buffer_.shrink_to_fit();
    Read();
  }

  void Write() {
    writing_ = true;
    // The handler holds the text: the queue may be gone when the write ends.
    const std::shared_ptr<const std::string> text = queue_.front();
    stream_.async_write(net::buffer(*text),
                        [self = shared_from_this(), text](const ErrorCode& error, std::size_t) {
                          self->OnWritten(error);
                        });
  }

  void OnWritten(const ErrorCode& error) {
    writing_ = false;
    if (finished_) return;
    if (error) {
      Finish(closing_ ? Status() : Unavailable("connection lost: " + error.message()));
      return;
    }
    queued_bytes_ -= queue_.front()->size();
    queue_.pop_front();
    if (!queue_.empty()) {
      Write();
    } else if (closing_) {
      CloseInOrder();
    }
  }

  void CloseInOrder() {
    stream_.async_close(websocket::close_code::normal,
                        [self = shared_from_this()](const ErrorCode&) { self->Finish(Status()); });
  }

  void CloseSocket() {
    ErrorCode ignored;
    stream_.next_layer().close(ignored);
  }

  // The one way to the end. Operations under way complete with an error and find `finished_`.
  void Finish(Status why) {
    if (finished_) return;
    finished_ = true;
    why_ = std::move(why);
    close_timer_.cancel();
    CloseSocket();
    if (started_) PostClosed();
  }

  void PostClosed() {
    net::post(stream_.get_executor(), [self = shared_from_this()] {
      self->queue_.clear();
      self->on_message_ = nullptr;
      const OnClosed on_closed = std::exchange(self->on_closed_, nullptr);
      if (on_closed) on_closed(self->why_);
    });
  }

  websocket::stream<Socket, false> stream_;  // false: no compression, which costs 90 KiB each
  Timer close_timer_;
  beast::flat_buffer buffer_;
  std::deque<std::shared_ptr<const std::string>> queue_;  // the front one is being written
  std::size_t queued_bytes_ = 0;
  std::string peer_address_;
  std::string local_address_;
  OnMessage on_message_;
  OnClosed on_closed_;
  Status why_;
  bool started_ = false;
  bool writing_ = false;
  bool closing_ = false;
  bool finished_ = false;
};

}  // namespace

void AsyncHandshake(Socket socket, const std::string& host, const std::string& path,
                    const std::string& token, Duration timeout, ChannelResult done) {
  const auto channel = std::make_shared<WebSocketChannel>(std::move(socket));
  channel->Connect(host, path, token, timeout, std::move(done));
}

void AsyncAccept(Socket socket, const std::string& head, ChannelResult done) {
  const auto channel = std::make_shared<WebSocketChannel>(std::move(socket));
  if (head.size() > kMaxUpgradeBytes) {
    const Executor executor = channel->executor();
    net::post(executor, [done = std::move(done)] {
      done(InvalidArgument(fmt::format("handshake of more than {} bytes", kMaxUpgradeBytes)));
    });
    return;
  }
  channel->Accept(head, std::move(done));
}

}  // namespace muster
