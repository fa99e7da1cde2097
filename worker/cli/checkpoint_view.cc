#include "worker/cli/checkpoint_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/format.h"
#include "protocol/codec.h"
#include "worker/cli/text.h"

namespace muster::cli {
namespace {

using Json = nlohmann::json;
using checkpoint::CatalogEntry;
using checkpoint::ExportFile;
using checkpoint::JoinPath;

// More than these are shown only on demand.
constexpr std::size_t kFilesShown = 8;

std::string Bytes(std::int64_t bytes) { return BytesText(static_cast<double>(bytes)); }

std::string Count(std::size_t count, const char* one) {
  return Plural(static_cast<double>(count), one);
}

// "ok", "incomplete" or "damaged".
const char* StateName(const CatalogEntry& entry) {
  if (entry.manifest.ok()) return "ok";
  return entry.manifest.status().code() == Code::kNotFound ? "incomplete" : "damaged";
}

std::string CutText(const TensorSpec& tensor) {
  if (!tensor.alias_of.empty()) return "as " + Printable(tensor.alias_of);
  switch (tensor.cut_dimension) {
    case kReplicated: return "replicated";
    case kFlat: return "flat";
    case kListed: return "listed";
    default: return fmt::format("dimension {}", tensor.cut_dimension);
  }
}

std::string TypeText(const TensorSpec& tensor) {
  const std::string stored(DTypeName(tensor.dtype));
  if (tensor.logical_dtype.empty()) return stored;
  return fmt::format("{} in {}", Printable(tensor.logical_dtype), stored);
}

std::int64_t BytesOf(const TensorSpec& tensor) {
  return checkpoint::ByteCount(tensor, Box::Whole(tensor.shape));
}

// "12 (1 alias), 1.5 MiB: 10 F32, 2 I64"
std::string TensorsText(const CheckpointRecord& record) {
  std::int64_t bytes = 0;
  std::size_t aliases = 0;
  std::map<std::string, std::size_t> types;
  for (const TensorSpec& tensor : record.tensors) {
    if (!tensor.alias_of.empty()) {
      ++aliases;
      continue;
    }
    bytes += BytesOf(tensor);
    ++types[TypeText(tensor)];
  }
  std::string text = fmt::format("{}", record.tensors.size());
  if (aliases > 0) {
    text += fmt::format(" ({} of them {})", aliases, aliases == 1 ? "an alias" : "aliases");
  }
  text += ", " + Bytes(bytes);
  const char* separator = ": ";
  for (const auto& [type, count] : types) {
    text += fmt::format("{}{} {}", std::exchange(separator, ", "), count, type);
  }
  return text;
}

void AppendFiles(const CheckpointRecord& record, bool all, std::string* out) {
  const std::size_t shown = all ? record.files.size() : std::min(record.files.size(), kFilesShown);
  Table table;
  table.Add({"FILE", "SIZE", "HEADER DIGEST"});
  for (std::size_t i = 0; i < shown; ++i) {
    const FileRecord& file = record.files[i];
    table.Add({file.name, Bytes(file.bytes), ToHex(file.header_digest)});
  }
  *out += "\n";
  table.AppendTo(out);
  if (shown < record.files.size()) {
    *out += fmt::format("… and {} more: --tensors lists all\n", record.files.size() - shown);
  }
}

void AppendTensors(const CheckpointRecord& record, std::string* out) {
  Table table;
  table.Add({"TENSOR", "TYPE", "SHAPE", "CUT", "SIZE"});
  for (const TensorSpec& tensor : record.tensors) {
    table.Add({Printable(tensor.name), TypeText(tensor),
               fmt::format("[{}]", fmt::join(tensor.shape, ",")), CutText(tensor),
               tensor.alias_of.empty() ? Bytes(BytesOf(tensor)) : "-"});
  }
  *out += "\n";
  table.AppendTo(out);
}

Json Summary(const std::string& root, const ListedCheckpoint& listed) {
  const CatalogEntry& entry = listed.entry;
  Json json = {{"directory", entry.directory},   {"path", JoinPath(root, entry.directory)},
               {"step", entry.key.step.value()}, {"generation", entry.key.generation.value()},
               {"bytes", entry.bytes},           {"pinned", entry.pinned},
               {"state", StateName(entry)}};
  if (listed.age_ms >= 0) json["age_ms"] = static_cast<std::int64_t>(listed.age_ms);
  if (!entry.manifest.ok()) {
    json["problem"] = entry.manifest.status().message();
    return json;
  }
  json["job"] = entry.manifest->record.job;
  json["world_size"] = entry.manifest->record.world_size;
  json["tensors"] = entry.manifest->record.tensors.size();
  json["manifest_digest"] = ToHex(entry.manifest->digest);
  return json;
}

std::string Dump(const Json& json) {
  // Paths may be no UTF-8.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string StateText(const std::string& root, const CatalogEntry& entry) {
  std::string text = "ok";
  if (entry.manifest.status().code() == Code::kNotFound) {
    text = "no manifest: not finished, or a dead save";
  } else if (!entry.manifest.ok()) {
    std::string problem = entry.manifest.status().message();
    const std::string prefix = JoinPath(JoinPath(root, entry.directory), "");
    const std::size_t at = problem.find(prefix);
    if (at != std::string::npos) problem.erase(at, prefix.size());
    text = "damaged: " + Printable(std::move(problem));
  }
  return entry.pinned ? text + ", pinned" : text;
}

std::string RenderList(const std::string& root, const std::vector<ListedCheckpoint>& checkpoints) {
  Table table;
  table.Add(
      {"CHECKPOINT", "STEP", "GENERATION", "JOB", "RANKS", "TENSORS", "SIZE", "AGE", "STATE"});
  std::size_t usable = 0;
  std::int64_t bytes = 0;
  for (const auto& [entry, age_ms] : checkpoints) {
    std::string job = "-";
    std::string ranks = "-";
    std::string tensors = "-";
    if (entry.manifest.ok()) {
      ++usable;
      job = Printable(entry.manifest->record.job);
      ranks = std::to_string(entry.manifest->record.world_size);
      tensors = std::to_string(entry.manifest->record.tensors.size());
    }
    bytes += entry.bytes;
    table.Add({entry.directory, std::to_string(entry.key.step.value()),
               std::to_string(entry.key.generation.value()), job, ranks, tensors,
               Bytes(entry.bytes), AgeText(age_ms), StateText(root, entry)});
  }
  std::string out;
  table.AppendTo(&out);
  out += Count(usable, "checkpoint");
  if (usable < checkpoints.size()) {
    out += fmt::format(" and {} that cannot be used", checkpoints.size() - usable);
  }
  return out + ", together " + Bytes(bytes) + "\n";
}

std::string RenderListJson(const std::string& root,
                           const std::vector<ListedCheckpoint>& checkpoints) {
  Json list = Json::array();
  for (const ListedCheckpoint& listed : checkpoints) list.push_back(Summary(root, listed));
  return Dump({{"root", root}, {"checkpoints", std::move(list)}});
}

std::string RenderCheckpoint(const std::string& root, const ListedCheckpoint& checkpoint,
                             bool tensors) {
  const CatalogEntry& entry = checkpoint.entry;
  const CheckpointRecord& record = entry.manifest->record;
  Table head;
  head.Add({"checkpoint", JoinPath(root, entry.directory)});
  head.Add(
      {"job", fmt::format("{}, lineage {}", Printable(record.job), ToHex(record.lineage.value()))});
  head.Add({"step", fmt::format("{}, saved in generation {} by {}", record.key.step.value(),
                                record.key.generation.value(), Plural(record.world_size, "rank"))});
  head.Add({"age", AgeText(checkpoint.age_ms)});
  head.Add({"state", StateText(root, entry)});
  head.Add({"tensors", TensorsText(record)});
  head.Add({"files", fmt::format("{}, {}", record.files.size(), Bytes(record.bytes))});
  head.Add({"manifest", "digest " + ToHex(entry.manifest->digest)});
  std::string out;
  head.AppendTo(&out);
  AppendFiles(record, tensors, &out);
  if (tensors) AppendTensors(record, &out);
  return out;
}

std::string RenderCheckpointJson(const std::string& root, const ListedCheckpoint& checkpoint) {
  Json json = Summary(root, checkpoint);
  CheckpointEntry entry;
  entry.record = checkpoint.entry.manifest->record;
  json["record"] = Json::parse(EncodeCheckpointEntry(entry))["record"];
  return Dump(json);
}

std::string RenderExport(const std::string& target, const CheckpointRecord& record,
                         const checkpoint::ExportPlan& plan) {
  std::size_t tensors = 0;
  std::size_t logical = 0;
  std::size_t aliases = 0;
  std::size_t copies = 0;
  for (const TensorSpec& tensor : record.tensors) aliases += tensor.alias_of.empty() ? 0U : 1U;
  for (const ExportFile& file : plan.files) {
    tensors += file.tensors.size();
    for (const checkpoint::ExportTensor& tensor : file.tensors) {
      logical += record.tensors[tensor.index].logical_dtype.empty() ? 0U : 1U;
      copies += record.tensors[tensor.index].alias_of.empty() ? 0U : 1U;
    }
  }
  std::string out = fmt::format("wrote {}: {}, {}, in {}\n", target, Count(tensors, "tensor"),
                                Bytes(plan.data_bytes), Count(plan.files.size(), "file"));
  if (copies < aliases) {
    out += fmt::format(
        "left out {}, which the metadata lists (muster.aliases); --copy-aliases writes copies\n",
        aliases == 1 ? "1 alias" : fmt::format("{} aliases", aliases));
  }
  if (logical > 0) {
    out += fmt::format(
        "{} in a type that the format does not know: see muster.logical_dtypes in the metadata\n",
        logical == 1 ? "1 tensor is" : fmt::format("{} tensors are", logical));
  }
  return out;
}

}  // namespace muster::cli
