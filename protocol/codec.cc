#include "protocol/codec.h"

#include <fmt/format.h>

#include <exception>

#include "protocol/codec_fields.h"

namespace muster {
namespace {

// Of another major version even the fields may differ: then the version is the reason to give, not
// the first field that looks wrong.
bool IsOfOtherMajor(const codec::Json& object) {
  const auto major = object.find("major");
  return major != object.end() && major->is_number_integer() && *major != kProtocolMajor;
}

Result<Message> DecodeObject(const codec::Json& object) {
  if (!object.is_object()) {
    return InvalidArgument(fmt::format("message: is {}, must be an object", object.type_name()));
  }
  const auto type = object.find("type");
  if (type == object.end() || !type->is_string()) {
    return InvalidArgument("type: is missing or no string: every message has one");
  }
  const auto& name = type->get_ref<const std::string&>();
  Result<Message> message = codec::MessageOf(name, object);
  if (!message.ok() && IsOfOtherMajor(object)) {
    return Unimplemented(fmt::format(
        "{} is of protocol version {}, this program speaks {}.{}: run the same version of Muster "
        "on both sides",
        codec::Quoted(name), object.find("major")->dump(), kProtocolMajor, kProtocolMinor));
  }
  return message;
}

}  // namespace

std::string Encode(const Message& message) {
  codec::Json object = codec::FieldsOf(message);
  object["type"] = NameOf(message);
  return codec::Dump(object);
}

Result<Message> Decode(std::string_view text) {
  if (text.size() > kMaxMessageBytes) {
    return InvalidArgument(fmt::format("message: is {} bytes long, at most {} are read",
                                       text.size(), kMaxMessageBytes));
  }
  const Result<codec::Json> object = codec::ParseJson(text, kMaxJsonDepth);
  if (!object.ok()) {
    return InvalidArgument(fmt::format("message: {}", object.status().message()));
  }
  try {
    return DecodeObject(*object);
  } catch (const std::exception& e) {
    return Internal(fmt::format("message: cannot be decoded: {}", e.what()));
  }
}

std::string_view NameOf(Cause cause) {
  switch (cause) {
    case Cause::kFirstFormation: return "first_formation";
    case Cause::kGrowth: return "growth";
    case Cause::kLeave: return "leave";
    case Cause::kProcessDied: return "process_died";
    case Cause::kConnectionLost: return "connection_lost";
    case Cause::kLeaseExpired: return "lease_expired";
    case Cause::kOperationFailed: return "operation_failed";
    case Cause::kNoProgress: return "no_progress";
    case Cause::kFormingFailed: return "forming_failed";
    case Cause::kCoordinatorRestart: return "coordinator_restart";
  }
  return "unknown";
}

std::string_view NameOf(Outcome outcome) {
  switch (outcome) {
    case Outcome::kNone: return "none";
    case Outcome::kApply: return "apply";
    case Outcome::kSkip: return "skip";
    case Outcome::kVoid: return "void";
  }
  return "unknown";
}

std::string_view NameOf(Stage stage) {
  switch (stage) {
    case Stage::kIdle: return "idle";
    case Stage::kCompute: return "compute";
    case Stage::kReduce: return "reduce";
    case Stage::kVote: return "vote";
    case Stage::kApply: return "apply";
    case Stage::kBoundary: return "boundary";
    case Stage::kForming: return "forming";
  }
  return "unknown";
}

std::string_view NameOf(RestoreSource source) {
  switch (source) {
    case RestoreSource::kInitial: return "initial";
    case RestoreSource::kLive: return "live";
    case RestoreSource::kCheckpoint: return "checkpoint";
  }
  return "unknown";
}

std::string_view NameOf(CheckpointState state) {
  switch (state) {
    case CheckpointState::kComplete: return "complete";
    case CheckpointState::kAnnounced: return "announced";
    case CheckpointState::kVoid: return "void";
    case CheckpointState::kDeleting: return "deleting";
  }
  return "unknown";
}

std::string_view NameOf(Backend backend) {
  switch (backend) {
    case Backend::kTcp: return "tcp";
    case Backend::kNccl: return "nccl";
  }
  return "unknown";
}

std::string_view NameOf(EndKind kind) {
  switch (kind) {
    case EndKind::kFinished: return "finished";
    case EndKind::kFailed: return "failed";
  }
  return "unknown";
}

}  // namespace muster
