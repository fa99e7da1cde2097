#include "coordinator/server/session.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "protocol/codec.h"

namespace muster::coordinator {
namespace {

// messages.h lists those of clients first, Attest being the last of them; GroupId goes both ways.
bool IsFromClient(const Message& message) {
  static const std::size_t last = Message(Attest{}).index();
  return message.index() <= last || std::holds_alternative<GroupId>(message);
}

bool IsHello(const Message& message) {
  return std::holds_alternative<Hello>(message) || std::holds_alternative<LauncherHello>(message);
}

class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(IoContext& io, const std::shared_ptr<Channel>& channel, Driver& driver, Log* log)
      : channel_(channel),
        peer_(channel->peer_address()),
        driver_(driver),
        log_(log),
        hello_timer_(io.get_executor()) {}

  void Run(const std::shared_ptr<Channel>& channel, TaskGroup& group) {
    ticket_ = group.Enter([weak = channel_] {
      if (const auto held = weak.lock()) held->Close();
    });
    hello_timer_.expires_after(std::chrono::nanoseconds(kHelloTimeout.nanos()));
    hello_timer_.async_wait([weak = weak_from_this()](const ErrorCode& cancelled) {
      const auto self = weak.lock();
      if (!cancelled && self != nullptr && !self->id_) {
        self->Refuse(Code::kDeadlineExceeded,
                     fmt::format("no hello within {} s", kHelloTimeout.millis() / 1000));
      }
    });
    channel->Start([self = shared_from_this()](std::string_view text) { self->OnMessage(text); },
                   [self = shared_from_this()](const Status& why) { self->OnClosed(why); });
  }

 private:
  void OnMessage(std::string_view text) {
    Result<Message> message = Decode(text);
    if (!message.ok()) {
      Refuse(message.status().code(), message.status().message());
      return;
    }
    if (!IsFromClient(*message)) {
      Refuse(Code::kInvalidArgument,
             fmt::format("'{}' is a message of the coordinator", NameOf(*message)));
      return;
    }
    if (!id_) {
      if (!IsHello(*message)) {
        Refuse(Code::kFailedPrecondition,
               fmt::format("the first message must be hello or launcher_hello, not '{}'",
                           NameOf(*message)));
        return;
      }
      hello_timer_.cancel();
      id_ = driver_.Open(channel_.lock());
    } else if (IsHello(*message)) {
      Refuse(Code::kFailedPrecondition, "a second hello: a session has one");
      return;
    }
    driver_.Receive(*id_, std::move(message).value());
  }

  void Refuse(Code code, const std::string& reason) {
    if (log_ != nullptr) {
      log_->Warning("session refused: " + reason, {{"peer", peer_}});
    }
    const std::shared_ptr<Channel> channel = channel_.lock();
    if (channel == nullptr) return;
    channel->Send(Encode(Refused{code, reason}));
    channel->Close();
  }

  void OnClosed(const Status& why) {
    hello_timer_.cancel();
    if (log_ != nullptr && !why.ok() && why.code() != Code::kUnavailable) {
      log_->Warning("session closed: " + why.message(), {{"peer", peer_}});
    }
    if (id_) driver_.Closed(*id_);
    ticket_ = TaskGroup::Ticket();
  }

  // The channel's callbacks own the session, so the session does not own the channel.
  const std::weak_ptr<Channel> channel_;
  const std::string peer_;
  Driver& driver_;
  Log* const log_;
  Timer hello_timer_;
  TaskGroup::Ticket ticket_;
  std::optional<SessionId> id_;  // once the first message is there
};

}  // namespace

void ServeSession(IoContext& io, const std::shared_ptr<Channel>& channel, Driver& driver,
                  TaskGroup& group, Log* log) {
  std::make_shared<Session>(io, channel, driver, log)->Run(channel, group);
}

}  // namespace muster::coordinator
