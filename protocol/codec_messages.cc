// The fields of the messages, and the way from a type's name to its struct and back.
#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <utility>
#include <variant>

#include "protocol/codec.h"
#include "protocol/codec_fields.h"

namespace muster {
namespace codec {

// Argument-dependent lookup, by which nested structs are found, does not look into unnamed
// namespaces; hence these functions are not in one.

constexpr int kMaxVersion = 1'000'000;

template <class Io>
void Fields(Io& io, Ref<Io, Attachment> attachment) {
  io.Object("record", attachment.record);
  io.Bool("started", attachment.started);
  io.Id("committed", attachment.committed);
  io.Id("aborted_for", attachment.aborted_for);
  io.Bool("stopped", attachment.stopped);
}

template <class Io>
void Fields(Io& io, Ref<Io, FoundCheckpoint> found) {
  io.Object("key", found.key);
  io.Hex("lineage", found.lineage);
  io.Integer("world_size", found.world_size, 1, kMaxWorldSize);
  io.Hex("manifest_digest", found.manifest_digest);
  io.Integer("bytes", found.bytes, 0, kMaxInteger);
}

template <class Io>
void Fields(Io& io, Ref<Io, Found> found) {
  io.Id("highest_generation", found.highest);
  io.List("checkpoints", found.checkpoints, 0, kMaxFound);
}

template <class Io>
void Fields(Io& io, Ref<Io, Hello> hello) {
  io.Integer("major", hello.major, 0, kMaxVersion);
  io.Integer("minor", hello.minor, 0, kMaxVersion);
  io.Name("job", hello.job);
  io.Object("member", hello.member);
  io.Bool("explicit_name", hello.explicit_name);
  io.Name("node", hello.node, /*may_be_empty=*/true);
  io.Integer("pid", hello.pid, 0, kMaxInteger);
  io.Address("address", hello.address);
  io.Bool("able", hello.able);
  io.Object("spec", hello.spec);
  io.Id("highest", hello.highest);
  io.Optional("attachment", hello.attachment);
  io.Optional("found", hello.found);
}

template <class Io>
void Fields(Io& /*io*/, Ref<Io, Able> /*able*/) {}

template <class Io>
void Fields(Io& io, Ref<Io, Heartbeat> heartbeat) {
  io.Integer("sequence", heartbeat.sequence, 0, kMaxInteger);
  io.Id("generation", heartbeat.generation);
  io.Id("committed", heartbeat.committed);
  io.Number("loss", heartbeat.loss);
  io.Enum("stage", heartbeat.stage);
  io.Integer("operations", heartbeat.operations, 0, kMaxInteger);
  io.Bool("waiting", heartbeat.waiting);
  io.Prose("phase", heartbeat.phase, kMaxNameBytes);
  // A worker may report that the deadline of its phase has passed.
  io.Span("phase_left_ns", heartbeat.phase_left, /*may_be_negative=*/true);
  io.Integer("skips", heartbeat.skips, 0, kMaxInteger);
}

template <class Io>
void Fields(Io& io, Ref<Io, OpenStep> open) {
  io.Id("step", open.step);
  io.Bool("prepared", open.prepared);
  io.Enum("vote", open.vote);
  io.Object("wishes", open.wishes);
}

template <class Io>
void Fields(Io& io, Ref<Io, Ready> ready) {
  io.Id("forming", ready.forming);
  io.Id("generation", ready.generation);
  io.Id("committed", ready.committed);
  io.Object("wishes", ready.wishes);
  io.Optional("open", ready.open);
  io.Bool("holds_state", ready.holds_state);
  io.Hex("lineage", ready.lineage);
  io.Millis("abort_ms", ready.abort_ms);
}

template <class Io>
void Fields(Io& io, Ref<Io, GroupId> group) {
  io.Id("generation", group.generation);
  io.Bytes("id", group.id, kMaxGroupIdBytes);
}

template <class Io>
void Fields(Io& io, Ref<Io, Formed> formed) {
  io.Id("generation", formed.generation);
  io.Millis("form_ms", formed.form_ms);
  io.Millis("restore_ms", formed.restore_ms);
  io.Integer("restored_bytes", formed.restored_bytes, 0, kMaxInteger);
}

template <class Io>
void Fields(Io& io, Ref<Io, FormFailed> failed) {
  io.Id("generation", failed.generation);
  io.Enum("code", failed.code);
  io.Prose("reason", failed.reason, kMaxReasonBytes);
  io.RankFrom("peer", failed.peer, -1);
  io.Optional("bad_checkpoint", failed.bad_checkpoint);
  io.Bool("contradicts", failed.contradicts);
  io.Bool("reading", failed.reading);
}

template <class Io>
void Fields(Io& io, Ref<Io, OperationFailed> failed) {
  io.Id("generation", failed.generation);
  io.Id("step", failed.step);
  io.Enum("code", failed.code);
  io.Prose("reason", failed.reason, kMaxReasonBytes);
  io.RankFrom("peer", failed.peer, -1);
}

template <class Io>
void Fields(Io& io, Ref<Io, Stopped> stopped) {
  io.Id("generation", stopped.generation);
  io.Id("step", stopped.step);
}

template <class Io>
void Fields(Io& io, Ref<Io, Leave> leave) {
  io.Prose("reason", leave.reason, kMaxReasonBytes);
  io.Bool("finish", leave.finish);
  io.Span("within_ns", leave.within);
}

template <class Io>
void Fields(Io& io, Ref<Io, Finished> finished) {
  io.Id("generation", finished.generation);
  io.Id("step", finished.step);
}

template <class Io>
void Fields(Io& io, Ref<Io, ShardWritten> written) {
  io.Object("key", written.key);
  io.Hex("lineage", written.lineage);
  io.Integer("world_size", written.world_size, 1, kMaxWorldSize);
  io.Object("file", written.file);
  io.Require(written.file.rank.value() < written.world_size, "file",
             "is of a rank that is not below world_size");
}

template <class Io>
void Fields(Io& io, Ref<Io, ShardFailed> failed) {
  io.Object("key", failed.key);
  io.RankFrom("rank", failed.rank, 0);
  io.Enum("code", failed.code);
  io.Prose("reason", failed.reason, kMaxReasonBytes);
}

template <class Io>
void Fields(Io& io, Ref<Io, ManifestWritten> written) {
  io.Object("key", written.key);
  io.Hex("digest", written.digest);
  io.Enum("code", written.code);
  io.Prose("reason", written.reason, kMaxReasonBytes);
}

template <class Io>
void Fields(Io& io, Ref<Io, CheckpointRemoved> removed) {
  io.Object("key", removed.key);
  io.Bool("pinned", removed.pinned);
}

template <class Io>
void Fields(Io& io, Ref<Io, LauncherHello> hello) {
  io.Integer("major", hello.major, 0, kMaxVersion);
  io.Integer("minor", hello.minor, 0, kMaxVersion);
  io.Name("job", hello.job);
  io.Name("node", hello.node);
}

template <class Io>
void Fields(Io& io, Ref<Io, Attest> attest) {
  io.Name("worker", attest.worker);
  io.Integer("pid", attest.pid, 0, kMaxInteger);
  io.Bool("alive", attest.alive);
  io.Prose("detail", attest.detail, kMaxReasonBytes);
}

template <class Io>
void Fields(Io& io, Ref<Io, Welcome> welcome) {
  io.Integer("major", welcome.major, 0, kMaxVersion);
  io.Integer("minor", welcome.minor, 0, kMaxVersion);
  io.Hex("lineage", welcome.lineage);
  io.Span("lease_ns", welcome.lease);
  io.Span("heartbeat_interval_ns", welcome.heartbeat_interval);
  io.Span("autonomy_ns", welcome.autonomy);
  io.Span("forming_timeout_ns", welcome.forming_timeout);
  io.Span("progress_timeout_ns", welcome.progress_timeout);
  io.Address("observed_address", welcome.observed_address);
}

template <class Io>
void Fields(Io& io, Ref<Io, Refused> refused) {
  io.Enum("code", refused.code);
  io.Prose("reason", refused.reason, kMaxReasonBytes);
}

template <class Io>
void Fields(Io& io, Ref<Io, Ack> ack) {
  io.Integer("sequence", ack.sequence, 0, kMaxInteger);
  io.Span("interval_ns", ack.interval);
}

template <class Io>
void Fields(Io& io, Ref<Io, Interrupt> interrupt) {
  io.Id("generation", interrupt.generation);
  io.Enum("cause", interrupt.cause);
  io.Prose("reason", interrupt.reason, kMaxReasonBytes);
}

template <class Io>
void Fields(Io& io, Ref<Io, Assign> assign) {
  if constexpr (Io::kReads) {
    GenerationRecord record;
    io.Object("record", record);
    assign.record = std::move(record);
  } else {
    io.Object("record", *assign.record);
  }
}

template <class Io>
void Fields(Io& io, Ref<Io, Start> start) {
  io.Id("generation", start.generation);
}

template <class Io>
void Fields(Io& io, Ref<Io, Wish> wish) {
  io.Id("generation", wish.generation);
  io.Object("wishes", wish.wishes);
}

template <class Io>
void Fields(Io& io, Ref<Io, WriteManifest> write) {
  io.Object("record", write.record);
  io.Require(write.record.world_size > 0, "record", "has no world_size");
}

template <class Io>
void Fields(Io& io, Ref<Io, CheckpointAnnounced> announced) {
  io.Object("key", announced.key);
}

template <class Io>
void Fields(Io& io, Ref<Io, CheckpointAborted> aborted) {
  io.Object("key", aborted.key);
  io.Prose("reason", aborted.reason, kMaxReasonBytes);
}

template <class Io>
void Fields(Io& io, Ref<Io, RemoveCheckpoint> remove) {
  io.Object("key", remove.key);
  io.PathPart("directory", remove.directory, /*may_be_empty=*/false);
}

template <class Io>
void Fields(Io& io, Ref<Io, SweepCheckpoints> sweep) {
  io.Id("generation", sweep.generation);
  io.Id("step", sweep.step);
  io.List("known", sweep.known, 0, kMaxSweepKnown);
}

template <class Io>
void Fields(Io& io, Ref<Io, Ended> ended) {
  io.Object("end", ended.end);
  io.Bool("left", ended.left);
}

namespace {

// In the order of the alternatives of Message.
constexpr std::array<std::string_view, std::variant_size_v<Message>> kTypes = {
    "hello",
    "able",
    "heartbeat",
    "ready",
    "formed",
    "form_failed",
    "operation_failed",
    "stopped",
    "leave",
    "finished",
    "shard_written",
    "shard_failed",
    "manifest_written",
    "checkpoint_removed",
    "launcher_hello",
    "attest",
    "welcome",
    "refused",
    "ack",
    "interrupt",
    "assign",
    "start",
    "wish",
    "write_manifest",
    "checkpoint_announced",
    "checkpoint_aborted",
    "remove_checkpoint",
    "sweep_checkpoints",
    "ended",
    "group_id"};
static_assert(!kTypes.back().empty(), "an alternative of Message has no name");

template <std::size_t I>
Result<Message> Read(const Json& object) {
  Status status;
  Message message(std::in_place_index<I>);
  Reader reader(object, kTypes[I], &status);
  if (status.ok()) Fields(reader, std::get<I>(message));
  if (!status.ok()) return status;
  return message;
}

template <std::size_t... I>
Result<Message> ReadOneOf(std::string_view type, const Json& object, std::index_sequence<I...>) {
  using ReadFunction = Result<Message> (*)(const Json&);
  constexpr std::array<ReadFunction, sizeof...(I)> kReaders = {&Read<I>...};
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i] == type) return kReaders[i](object);
  }
  return NotFound(fmt::format("type: is {}, which is no message of protocol {}.{}", Quoted(type),
                              kProtocolMajor, kProtocolMinor));
}

}  // namespace

Json FieldsOf(const Message& message) {
  Json object = Json::object();
  Writer writer(&object);
  std::visit([&](const auto& alternative) { Fields(writer, alternative); }, message);
  return object;
}

Result<Message> MessageOf(std::string_view type, const Json& object) {
  return ReadOneOf(type, object, std::make_index_sequence<std::variant_size_v<Message>>());
}

}  // namespace codec

std::string_view NameOf(const Message& message) { return codec::kTypes[message.index()]; }

}  // namespace muster
