// The fields of the records, and the records as texts of their own.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>

#include "protocol/codec.h"
#include "protocol/codec_fields.h"

namespace muster {
namespace codec {

template <class Io>
void Fields(Io& io, Ref<Io, TensorSpec> tensor) {
  io.Text("name", tensor.name, 1, kMaxNameBytes);
  io.Enum("dtype", tensor.dtype);
  io.Integers("shape", tensor.shape, kMaxDimensions);
  io.Integer("cut_dimension", tensor.cut_dimension, kListed,
             static_cast<std::int64_t>(kMaxDimensions) - 1);
  io.Require(tensor.cut_dimension < static_cast<int>(tensor.shape.size()), "cut_dimension",
             "is not a dimension of the shape");
  io.OptionalText("logical_dtype", tensor.logical_dtype, kMaxNameBytes);
  io.OptionalText("alias_of", tensor.alias_of, kMaxNameBytes);
  const Result<std::int64_t> count = CountElements(tensor.shape);
  io.Require(count.ok() && *count <= kMaxInteger / SizeOf(tensor.dtype), "shape",
             "has too many elements");
}

template <class Io>
void Fields(Io& io, Ref<Io, JobSpec> spec) {
  io.Integer("min_workers", spec.min_workers, 0, kMaxWorldSize);
  io.Integer("max_workers", spec.max_workers, 0, kMaxWorldSize);
  io.Integer("steps", spec.steps, 0, kMaxInteger);
  io.Hex("seed", spec.seed);
  io.Integer("samples", spec.samples, 0, kMaxInteger);
  io.Integer("global_batch", spec.global_batch, 0, kMaxInteger);
  io.Integer("micro_batches", spec.micro_batches, 0, kMaxMicroBatches);
  io.Span("failure_timeout_ns", spec.failure_timeout);
  io.Text("checkpoint_directory", spec.checkpoint_directory, 0, kMaxPathBytes);
  io.Integer("checkpoint_every", spec.checkpoint_every, 0, kMaxInteger);
  io.Integer("checkpoint_keep", spec.checkpoint_keep, 0, 1'000'000);
  io.Integer("checkpoint_keep_every", spec.checkpoint_keep_every, 0, kMaxInteger);
  io.List("tensors", spec.tensors, 0, kMaxTensors);
  io.OptionalEnum("backend", spec.backend);
}

template <class Io>
void Fields(Io& io, Ref<Io, Member> member) {
  io.Name("worker", member.worker);
  io.Hex("incarnation", member.incarnation);
}

template <class Io>
void Fields(Io& io, Ref<Io, CheckpointKey> key) {
  io.Id("step", key.step);
  io.Id("generation", key.generation);
}

template <class Io>
void Fields(Io& io, Ref<Io, FileRecord> file) {
  io.PathPart("name", file.name, /*may_be_empty=*/false);
  io.Integer("bytes", file.bytes, 0, kMaxInteger);
  io.Hex("header_digest", file.header_digest);
  io.RankFrom("rank", file.rank, 0);
  io.OptionalBoxes("listed", file.listed, kMaxListedBoxes);
}

template <class Io>
void Fields(Io& io, Ref<Io, CheckpointRecord> record) {
  io.Name("job", record.job);
  io.Object("key", record.key);
  io.Hex("lineage", record.lineage);
  io.Integer("world_size", record.world_size, 0, kMaxWorldSize);
  io.PathPart("directory", record.directory, /*may_be_empty=*/false);
  io.List("tensors", record.tensors, 0, kMaxTensors);
  io.List("files", record.files, 0, kMaxFiles);
  io.Integer("bytes", record.bytes, 0, kMaxInteger);
  io.Require(std::all_of(record.files.begin(), record.files.end(),
                         [&](const FileRecord& f) { return f.rank.value() < record.world_size; }),
             "files", "hold a rank that is not below world_size");
}

template <class Io>
void Fields(Io& io, Ref<Io, CheckpointEntry> entry) {
  io.Object("record", entry.record);
  io.Enum("state", entry.state);
  io.Hex("manifest_digest", entry.manifest_digest);
  io.Integer("strikes", entry.strikes, 0, 1'000'000);
  io.Bool("pinned", entry.pinned);
  io.Require(entry.record.world_size > 0 || entry.state != CheckpointState::kComplete,
             "record.world_size", "is 0, but a manifest is still to be made of this record");
}

template <class Io>
void Fields(Io& io, Ref<Io, Wishes> wishes) {
  io.Bool("checkpoint", wishes.checkpoint);
  io.Bool("reform", wishes.reform);
}

template <class Io>
void Fields(Io& io, Ref<Io, StepDecision> decision) {
  io.Id("generation", decision.generation);
  io.Id("step", decision.step);
  io.Enum("outcome", decision.outcome);
  io.Object("wishes", decision.wishes);
}

template <class Io>
void Fields(Io& io, Ref<Io, Restore> restore) {
  io.Enum("source", restore.source);
  io.Id("step", restore.step);
  io.Id("base", restore.base);
  io.Integer("base_world_size", restore.base_world_size, 0, kMaxWorldSize);
  io.Object("checkpoint", restore.checkpoint);
  io.PathPart("directory", restore.directory, /*may_be_empty=*/true);
  io.Hex("manifest_digest", restore.manifest_digest);
  io.Require(restore.source != RestoreSource::kLive || restore.base_world_size > 0,
             "base_world_size", "is 0, which no generation with live state has");
  io.Require(restore.source != RestoreSource::kCheckpoint || !restore.directory.empty(),
             "directory", "is empty, but the source is a checkpoint");
}

template <class Io>
void Fields(Io& io, Ref<Io, MemberEntry> entry) {
  io.Object("member", entry.member);
  io.RankFrom("rank", entry.rank, 0);
  io.Name("node", entry.node, /*may_be_empty=*/true);
  io.Address("address", entry.address);
  io.RankFrom("previous_rank", entry.previous_rank, -1);
}

template <class Io>
void Fields(Io& io, Ref<Io, GenerationRecord> record) {
  io.Id("generation", record.generation);
  io.Hex("lineage", record.lineage);
  io.Id("previous", record.previous);
  io.List("members", record.members, 1, static_cast<std::size_t>(kMaxWorldSize));
  io.Object("decision", record.decision);
  io.Object("restore", record.restore);
  // Everyone indexes the list by rank, and the old cut by previous rank.
  std::int32_t next = 0;
  bool by_rank = true;
  bool within_base = true;
  for (const MemberEntry& member : record.members) {
    by_rank = by_rank && member.rank == Rank(next++);
    within_base = within_base && member.previous_rank.value() < record.restore.base_world_size;
  }
  io.Require(by_rank, "members", "are not in the order of ranks 0, 1, 2 …");
  io.Require(within_base || record.restore.source != RestoreSource::kLive, "members",
             "hold a previous_rank that is not below restore.base_world_size");
}

template <class Io>
void Fields(Io& io, Ref<Io, Rollback> rollback) {
  io.Id("generation", rollback.generation);
  io.Id("step", rollback.step);
}

template <class Io>
void Fields(Io& io, Ref<Io, Place> place) {
  io.Name("worker", place.worker, /*may_be_empty=*/true);
  io.Name("node", place.node, /*may_be_empty=*/true);
}

template <class Io>
void Fields(Io& io, Ref<Io, End> end) {
  io.Enum("kind", end.kind);
  io.Id("step", end.step);
  io.Prose("reason", end.reason, kMaxReasonBytes);
}

template <class Io>
void Fields(Io& io, Ref<Io, JobRecord> record) {
  io.Name("job", record.job);
  io.Object("spec", record.spec);
  io.Hex("lineage", record.lineage);
  io.Id("highest", record.highest);
  io.Optional("latest", record.latest);
  io.Bool("latest_started", record.latest_started);
  io.Optional("started", record.started);
  io.List("gone", record.gone, 0, static_cast<std::size_t>(kMaxWorldSize));
  io.Id("committed", record.committed);
  io.List("rollbacks", record.rollbacks, 0, kMaxRollbacks);
  io.List("drained", record.drained, 0, kMaxDrained);
  io.Optional("end", record.end);
}

template void Fields<Reader>(Reader&, TensorSpec&);
template void Fields<Reader>(Reader&, JobSpec&);
template void Fields<Reader>(Reader&, Member&);
template void Fields<Reader>(Reader&, Wishes&);
template void Fields<Reader>(Reader&, GenerationRecord&);
template void Fields<Reader>(Reader&, CheckpointKey&);
template void Fields<Reader>(Reader&, FileRecord&);
template void Fields<Reader>(Reader&, CheckpointRecord&);
template void Fields<Reader>(Reader&, End&);
template void Fields<Writer>(Writer&, const TensorSpec&);
template void Fields<Writer>(Writer&, const JobSpec&);
template void Fields<Writer>(Writer&, const Member&);
template void Fields<Writer>(Writer&, const Wishes&);
template void Fields<Writer>(Writer&, const GenerationRecord&);
template void Fields<Writer>(Writer&, const CheckpointKey&);
template void Fields<Writer>(Writer&, const FileRecord&);
template void Fields<Writer>(Writer&, const CheckpointRecord&);
template void Fields<Writer>(Writer&, const End&);

namespace {

template <class T>
std::string EncodeRecord(const T& record) {
  Json object = Json::object();
  Writer writer(&object);
  Fields(writer, record);
  return Dump(object);
}

template <class T>
Result<T> DecodeRecord(std::string_view text, std::string_view name) {
  if (text.size() > kMaxRecordBytes) {
    return InvalidArgument(fmt::format("{}: is {} bytes long, at most {} are read", name,
                                       text.size(), kMaxRecordBytes));
  }
  const Result<Json> object = ParseJson(text, kMaxJsonDepth);
  if (!object.ok()) {
    return InvalidArgument(fmt::format("{}: {}", name, object.status().message()));
  }
  try {
    Status status;
    T record;
    Reader reader(*object, name, &status);
    if (status.ok()) Fields(reader, record);
    if (!status.ok()) return status;
    return record;
  } catch (const std::exception& e) {
    return Internal(fmt::format("{}: cannot be decoded: {}", name, e.what()));
  }
}

// A list as the one field of an object.
template <class T>
struct Listed {
  std::vector<T> items;
};

template <class Io>
void Fields(Io& io, Ref<Io, Listed<TensorSpec>> list) {
  io.List("tensors", list.items, 0, kMaxTensors);
}

template <class Io>
void Fields(Io& io, Ref<Io, Listed<FileRecord>> list) {
  io.List("files", list.items, 0, kMaxFiles);
}

template <class T>
Result<std::vector<T>> DecodeList(std::string_view text, std::string_view name) {
  Result<Listed<T>> list = DecodeRecord<Listed<T>>(text, name);
  if (!list.ok()) return list.status();
  return std::move(list->items);
}

}  // namespace
}  // namespace codec

std::string EncodeTensors(const std::vector<TensorSpec>& tensors) {
  return codec::EncodeRecord(codec::Listed<TensorSpec>{tensors});
}

Result<std::vector<TensorSpec>> DecodeTensors(std::string_view text) {
  return codec::DecodeList<TensorSpec>(text, "layout");
}

std::string EncodeFiles(const std::vector<FileRecord>& files) {
  return codec::EncodeRecord(codec::Listed<FileRecord>{files});
}

Result<std::vector<FileRecord>> DecodeFiles(std::string_view text) {
  return codec::DecodeList<FileRecord>(text, "file_list");
}

std::string EncodeJobRecord(const JobRecord& record) { return codec::EncodeRecord(record); }

Result<JobRecord> DecodeJobRecord(std::string_view text) {
  return codec::DecodeRecord<JobRecord>(text, "job_record");
}

std::string EncodeCheckpointEntry(const CheckpointEntry& entry) {
  return codec::EncodeRecord(entry);
}

Result<CheckpointEntry> DecodeCheckpointEntry(std::string_view text) {
  return codec::DecodeRecord<CheckpointEntry>(text, "checkpoint_entry");
}

}  // namespace muster
