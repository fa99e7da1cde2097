#include "checkpoint/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "checkpoint/aligned_buffer.h"
#include "checkpoint/format.h"
#include "checkpoint/fresh_file.h"
#include "checkpoint/reader.h"
#include "checkpoint/safetensors.h"
#include "protocol/check.h"

namespace muster::checkpoint {
namespace {

using nlohmann::json;

// One write.
constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20U;
constexpr std::string_view kOnlyPart = "model.safetensors";

std::string PartName(std::size_t part, std::size_t of) {
  if (of == 1) return std::string(kOnlyPart);
  return fmt::format("model-{:05}-of-{:05}.safetensors", part + 1, of);
}

// May a file of this name be a part of a model that other tools find in a directory?
bool IsPartOfModel(std::string_view name) {
  return name == kOnlyPart || name == kExportIndexName ||
         (name.starts_with("model-") && name.ends_with(".safetensors") &&
          name.find("-of-") != std::string_view::npos);
}

std::int64_t BytesOf(const TensorSpec& tensor) {
  return ByteCount(tensor, Box::Whole(tensor.shape));
}

// The tensors of each file, in the order of registration. At least one file.
std::vector<std::vector<std::size_t>> Deal(const CheckpointRecord& record,
                                           const ExportOptions& options) {
  std::vector<std::vector<std::size_t>> files(1);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < record.tensors.size(); ++i) {
    const TensorSpec& tensor = record.tensors[i];
    if (!tensor.alias_of.empty() && !options.copy_aliases) continue;
    const std::int64_t more = BytesOf(tensor);
    if (options.part_bytes > 0 && !files.back().empty() && more > options.part_bytes - bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(i);
    bytes += more;
  }
  return files;
}

// The aliases that are not in any file, by the tensor that they stand for.
using Aliases = std::multimap<std::string, std::string>;

std::map<std::string, std::string> MetadataOf(const CheckpointRecord& record,
                                              const std::vector<std::size_t>& tensors,
                                              const Aliases& aliases) {
  std::map<std::string, std::string> metadata = {
      {"format", "pt"},
      {"muster.job", record.job},
      {"muster.step", std::to_string(record.key.step.value())},
      {"muster.generation", std::to_string(record.key.generation.value())}};
  json logical = json::object();
  json stands_for = json::object();
  for (const std::size_t i : tensors) {
    const TensorSpec& tensor = record.tensors[i];
    if (!tensor.logical_dtype.empty()) logical[tensor.name] = tensor.logical_dtype;
    const auto [first, last] = aliases.equal_range(tensor.name);
    for (auto it = first; it != last; ++it) stands_for[it->second] = tensor.name;
  }
  if (!logical.empty()) metadata["muster.logical_dtypes"] = logical.dump();
  if (!stands_for.empty()) metadata["muster.aliases"] = stands_for.dump();
  return metadata;
}

Result<ExportFile> PlanFile(const CheckpointRecord& record, std::vector<std::size_t> tensors,
                            const Aliases& aliases) {
  ExportFile file;
  SafetensorsHeader header;
  header.metadata = MetadataOf(record, tensors, aliases);
  std::stable_sort(tensors.begin(), tensors.end(), [&](std::size_t a, std::size_t b) {
    return SizeOf(record.tensors[a].dtype) > SizeOf(record.tensors[b].dtype);
  });
  std::int64_t position = 0;
  for (const std::size_t i : tensors) {
    const TensorSpec& tensor = record.tensors[i];
    const std::int64_t begin = position;
    if (__builtin_add_overflow(begin, BytesOf(tensor), &position)) {
      return InvalidArgument("the tensors pass 2^63 - 1 bytes: export them in parts");
    }
    file.tensors.push_back({i, begin, position});
    header.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, begin, position});
  }
  Result<std::string> prefix = EncodeSafetensors(header, kDataAlignment);
  if (!prefix.ok()) return prefix.status();
  file.prefix = std::move(*prefix);
  return file;
}

std::string IndexOf(const CheckpointRecord& record, const ExportPlan& plan) {
  json weights = json::object();
  for (const ExportFile& file : plan.files) {
    for (const ExportTensor& tensor : file.tensors) {
      weights[record.tensors[tensor.index].name] = file.name;
    }
  }
  const json index = {{"metadata", {{"total_size", plan.data_bytes}}}, {"weight_map", weights}};
  return index.dump(2) + "\n";
}

// Writes the data of one file: buffer after buffer, each filled by the reader and then written on
// all threads.
class DataWriter {
 public:
  DataWriter(FileSystem& fs, const std::string& root, const CheckpointRecord& record, IoPool& pool,
             const ExportRun& run)
      : fs_(fs), root_(root), record_(record), pool_(pool), run_(run) {}

  Status Write(const ExportFile& plan, WritableFile& file) {
    const std::int64_t data_start = std::ssize(plan.prefix);
    const std::int64_t bytes = data_start + plan.data_bytes();
    // File systems let writes go side by side only where they do not make the file longer.
    MUSTER_RETURN_IF_ERROR(file.SetSize(AlignUp(bytes)));
    MUSTER_RETURN_IF_ERROR(buffer_.Resize(data_start));
    std::memcpy(buffer_.span().data(), plan.prefix.data(), plan.prefix.size());
    MUSTER_RETURN_IF_ERROR(file.WriteAt(0, buffer_.padded()));
    const std::int64_t step = AlignUp(std::max<std::int64_t>(run_.buffer_bytes, 1));
    for (std::int64_t begin = 0; begin < plan.data_bytes(); begin += step) {
      const std::int64_t end = std::min(begin + step, plan.data_bytes());
      MUSTER_RETURN_IF_ERROR(Fill(plan, begin, end));
      MUSTER_RETURN_IF_ERROR(WriteBuffer(file, data_start + begin));
    }
    return bytes % kDirectAlignment == 0 ? Status() : file.SetSize(bytes);
  }

 private:
  // Reads the bytes [begin, end) of the file's data.
  Status Fill(const ExportFile& plan, std::int64_t begin, std::int64_t end) {
    MUSTER_RETURN_IF_ERROR(buffer_.Resize(end - begin));
    std::vector<WantedBox> wanted;
    auto it = std::partition_point(plan.tensors.begin(), plan.tensors.end(),
                                   [&](const ExportTensor& t) { return t.end <= begin; });
    for (; it != plan.tensors.end() && it->begin < end; ++it) {
      const TensorSpec& spec = record_.tensors[it->index];
      const std::int64_t element = SizeOf(spec.dtype);
      // Buffers begin and end between elements, since larger ones come first.
      const std::int64_t lo = std::max(begin, it->begin);
      const std::int64_t hi = std::min(end, it->end);
      std::int64_t position = lo - begin;
      for (Box& box :
           FlatBoxes(spec.shape, (lo - it->begin) / element, (hi - it->begin) / element)) {
        const std::int64_t bytes = ByteCount(spec, box);
        wanted.push_back({it->index, std::move(box),
                          buffer_.span().subspan(static_cast<std::size_t>(position),
                                                 static_cast<std::size_t>(bytes))});
        position += bytes;
      }
    }
    ReadOptions options;
    options.pool = &pool_;
    return LoadBoxes(fs_, root_, record_, wanted, options).status();
  }

  Status WriteBuffer(WritableFile& file, std::int64_t offset) {
    const std::span<const std::byte> bytes = std::as_const(buffer_).padded();
    const std::int64_t pieces = (std::ssize(bytes) + kPieceBytes - 1) / kPieceBytes;
    return pool_.ForEach(pieces, [&](std::int64_t piece) {
      const std::int64_t begin = piece * kPieceBytes;
      const std::int64_t count = std::min(kPieceBytes, std::ssize(bytes) - begin);
      const Status status = file.WriteAt(
          offset + begin,
          bytes.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count)));
      if (status.ok() && run_.progress) run_.progress(std::min(count, buffer_.size() - begin));
      return status;
    });
  }

  FileSystem& fs_;
  const std::string& root_;
  const CheckpointRecord& record_;
  IoPool& pool_;
  const ExportRun& run_;
  AlignedBuffer buffer_;
};

// Makes the directory of the plan, if need be, and says what in it has to go.
Result<std::vector<std::string>> FindConflicts(FileSystem& fs, const ExportPlan& plan) {
  if (plan.parts) {
    const Status made = fs.MakeDirectory(plan.directory);
    if (made.ok()) MUSTER_RETURN_IF_ERROR(fs.SyncDirectory(ParentOf(plan.directory)));
    if (!made.ok() && made.code() != Code::kAlreadyExists) return made;
  }
  Result<std::vector<std::string>> names = fs.List(plan.directory);
  if (!names.ok()) return names.status();
  std::erase_if(*names, [&](const std::string& name) {
    return plan.parts ? !IsPartOfModel(name) : name != plan.files.front().name;
  });
  return names;
}

Status CheckSpace(FileSystem& fs, const ExportPlan& plan) {
  std::int64_t bytes = plan.data_bytes;
  for (const ExportFile& file : plan.files) bytes += AlignUp(std::ssize(file.prefix)) + 1;
  const Result<std::int64_t> free = fs.FreeBytes(plan.directory);
  if (!free.ok()) return free.status();
  if (*free >= bytes) return {};
  return ResourceExhausted(fmt::format(
      "{} has {} bytes free, and the export needs {}: free space there, or name another place",
      plan.directory, *free, bytes));
}

// Puts the temporary files under their names.
Status Publish(FileSystem& fs, const ExportPlan& plan, const std::vector<FreshFile>& written,
               const std::vector<std::string>& conflicts) {
  std::set<std::string_view> fresh;
  for (const ExportFile& file : plan.files) fresh.insert(file.name);
  // An old index goes before its parts (its name is the last one), lest it names what is not there
  // any more; old parts go too, lest somebody who looks without an index takes them for new ones.
  for (auto name = conflicts.rbegin(); name != conflicts.rend(); ++name) {
    if (fresh.contains(*name)) continue;
    MUSTER_RETURN_IF_ERROR(fs.Unlink(JoinPath(plan.directory, *name)));
  }
  for (std::size_t i = 0; i < written.size(); ++i) {
    const std::string name = i < plan.files.size() ? plan.files[i].name : kExportIndexName;
    MUSTER_RETURN_IF_ERROR(fs.Rename(written[i].path, JoinPath(plan.directory, name)));
  }
  return fs.SyncDirectory(plan.directory);
}

// Writes all files of the plan, and the index last, under temporary names.
Status WriteTemporaries(FileSystem& fs, const ExportPlan& plan, DataWriter& writer,
                        std::vector<FreshFile>* written) {
  const auto add = [&](const std::string& name,
                       const std::function<Status(WritableFile&)>& fill) -> Status {
    Result<FreshFile> fresh = CreateTemporary(fs, plan.directory, name);
    if (!fresh.ok()) return fresh.status();
    MUSTER_RETURN_IF_ERROR(FillOrRemove(fs, *fresh, fill));
    written->push_back(std::move(*fresh));
    return {};
  };
  for (const ExportFile& file : plan.files) {
    MUSTER_RETURN_IF_ERROR(
        add(file.name, [&](WritableFile& into) { return writer.Write(file, into); }));
  }
  if (plan.index.empty()) return {};
  return add(kExportIndexName, [&](WritableFile& into) {
    return into.WriteAt(0, std::as_bytes(std::span(plan.index)));
  });
}

}  // namespace

Result<ExportPlan> PlanExport(const CheckpointRecord& record, const std::string& target,
                              const ExportOptions& options) {
  ExportPlan plan;
  plan.parts = options.part_bytes > 0;
  plan.directory = plan.parts ? target : ParentOf(target);
  if (ParseDirectoryName(BaseNameOf(plan.directory))) {
    return InvalidArgument(fmt::format(
        "{} is the directory of a checkpoint: name another place for the export", plan.directory));
  }
  Aliases aliases;
  for (const TensorSpec& tensor : record.tensors) {
    if (!tensor.alias_of.empty() && !options.copy_aliases) {
      aliases.emplace(tensor.alias_of, tensor.name);
    }
  }
  std::vector<std::vector<std::size_t>> dealt = Deal(record, options);
  for (std::size_t i = 0; i < dealt.size(); ++i) {
    Result<ExportFile> file = PlanFile(record, std::move(dealt[i]), aliases);
    if (!file.ok()) return file.status();
    file->name = plan.parts ? PartName(i, dealt.size()) : BaseNameOf(target);
    plan.data_bytes += file->data_bytes();
    plan.files.push_back(std::move(*file));
  }
  if (plan.files.size() > 1) plan.index = IndexOf(record, plan);
  return plan;
}

Status Export(FileSystem& fs, const std::string& root, const CheckpointRecord& record,
              const ExportPlan& plan, IoPool& pool, const ExportRun& run) {
  const Result<std::vector<std::string>> conflicts = FindConflicts(fs, plan);
  if (!conflicts.ok()) return conflicts.status();
  if (!conflicts->empty() && !run.force) {
    return AlreadyExists(fmt::format("{} exists: name another target, or replace it with --force",
                                     JoinPath(plan.directory, conflicts->front())));
  }
  MUSTER_RETURN_IF_ERROR(CheckSpace(fs, plan));
  std::vector<FreshFile> written;
  DataWriter writer(fs, root, record, pool, run);
  Status status = WriteTemporaries(fs, plan, writer, &written);
  if (status.ok()) status = Publish(fs, plan, written, *conflicts);
  if (status.ok()) return status;
  // Those that have their names already are not there under this one.
  for (const FreshFile& file : written) static_cast<void>(fs.Unlink(file.path));
  return status;
}

}  // namespace muster::checkpoint
