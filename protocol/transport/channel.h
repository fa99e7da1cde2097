// A connection that carries text messages both ways: a WebSocket, of which its users see nothing.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "protocol/status.h"
#include "protocol/time.h"
#include "protocol/transport/net.h"

namespace muster {

// Confined to the thread that runs its io_context. Created by AsyncDial (dialer.h) and by a server
// from an upgraded connection; it then stays alive by itself until the connection has ended, so the
// one who holds it calls Close or Abort to be rid of it. No callback is made from within a call of
// Send, Close or Abort.
class Channel {
 public:
  // The text is valid during the call alone.
  using OnMessage = std::function<void(std::string_view text)>;
  // Ok: this side called Close. Otherwise why the connection ended: kUnavailable when the peer or
  // the network ended it, kResourceExhausted when too much waited to be sent, kInvalidArgument when
  // the peer broke the protocol (binary, larger than kMaxMessageBytes, no WebSocket frame).
  using OnClosed = std::function<void(const Status& why)>;

  virtual ~Channel() = default;

  // Begins to read. `on_closed` is called exactly once, unless the io_context is destroyed first;
  // no callback comes after it, and both callbacks are destroyed then. Call it once.
  virtual void Start(OnMessage on_message, OnClosed on_closed) = 0;

  // Queues one message; never blocks. The queue is bounded by kMaxQueuedMessages and
  // kMaxQueuedBytes: a peer that reads too slowly for it is cut off. Without effect on a channel
  // that is closing or closed. A text for many peers is shared, not copied.
  virtual void Send(std::shared_ptr<const std::string> text) = 0;
  void Send(std::string text) { Send(std::make_shared<const std::string>(std::move(text))); }

  // Sends what is queued, then closes in order; cut off after kCloseTimeout. Nothing that still
  // arrives is delivered.
  virtual void Close() = 0;
  // Cuts the connection at once; `why` goes to `on_closed`.
  virtual void Abort(Status why) = 0;

  // Of the connection, without ports; the peer's with IPv4-mapped addresses as IPv4.
  [[nodiscard]] virtual const std::string& peer_address() const = 0;
  [[nodiscard]] virtual const std::string& local_address() const = 0;
  // The descriptor, for closing it in a forked child; -1 once closed.
  [[nodiscard]] virtual int native_handle() = 0;
};

inline constexpr Duration kCloseTimeout = Duration::Seconds(1);
// For the server's half of the HTTP request and answer that begin a WebSocket.
inline constexpr Duration kHandshakeTimeout = Duration::Seconds(5);

using ChannelResult = std::function<void(Result<std::shared_ptr<Channel>>)>;

// The client's half of the handshake on a connected socket: GET `path` with "Host: host" and, if
// `token` is not empty, "Authorization: Bearer token". Error: kPermissionDenied for 401 and 403,
// kFailedPrecondition for another answer than an upgrade (both with the answer's text),
// kUnavailable when the connection ends or no answer comes within `timeout`.
void AsyncHandshake(Socket socket, const std::string& host, const std::string& path,
                    const std::string& token, Duration timeout, ChannelResult done);

// The server's half. `head` is the request that asked for the upgrade, as bytes; those of a
// WebSocket that came along with it may follow. Refused: more than kMaxUpgradeBytes.
inline constexpr std::size_t kMaxUpgradeBytes = 1400;
void AsyncAccept(Socket socket, const std::string& head, ChannelResult done);

}  // namespace muster
