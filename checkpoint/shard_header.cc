#include "checkpoint/shard_header.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "checkpoint/format.h"
#include "checkpoint/safetensors.h"
#include "protocol/codec_json.h"

namespace muster::checkpoint {
namespace {

using nlohmann::json;

constexpr std::size_t kDigestDigits = 16;
// List, tensor, shape or bounds.
constexpr std::size_t kTensorsDepth = 3;
constexpr std::string_view kBlockAlgorithm = "xxh3-64";
// Elements of a tensor's list: what all have, what those have that say what their elements are, and
// what those have that are a part.
constexpr std::size_t kShortest = 2;
constexpr std::size_t kWithLogicalType = 3;
constexpr std::size_t kOfAPart = 6;

// For each tensor a list: its index and cut; if need be the logical type; and for a part also the
// tensor's name, its shape, and the bounds of the box. The header itself has the rest.
std::string EncodeTensors(const std::vector<StoredTensor>& tensors) {
  json list = json::array();
  for (const StoredTensor& tensor : tensors) {
    json& item = list.emplace_back(json::array({tensor.index, tensor.spec.cut_dimension}));
    const bool part = tensor.box != Box::Whole(tensor.spec.shape);
    if (part || !tensor.spec.logical_dtype.empty()) item.push_back(tensor.spec.logical_dtype);
    if (!part) continue;
    json bounds = json::array();
    for (const Range& range : tensor.box.ranges) {
      bounds.push_back(range.lo);
      bounds.push_back(range.hi);
    }
    item.push_back(tensor.spec.name);
    item.push_back(tensor.spec.shape);
    item.push_back(std::move(bounds));
  }
  return list.dump();
}

// A tensor as EncodeTensors writes it, whose place is `entry`; json's own exceptions say that it is
// not one.
StoredTensor TensorFrom(const json& item, const SafetensorsEntry& entry) {
  StoredTensor tensor;
  if (item.size() != kShortest && item.size() != kWithLogicalType && item.size() != kOfAPart) {
    throw std::invalid_argument("a list of another length");
  }
  tensor.index = item.at(0).get<std::size_t>();
  tensor.spec.cut_dimension = item.at(1).get<int>();
  tensor.spec.dtype = entry.dtype;
  tensor.name = entry.name;
  tensor.begin = entry.begin;
  tensor.end = entry.end;
  if (item.size() >= kWithLogicalType) tensor.spec.logical_dtype = item.at(2).get<std::string>();
  if (item.size() < kOfAPart) {
    tensor.spec.name = entry.name;
    tensor.spec.shape = entry.shape;
    tensor.box = Box::Whole(entry.shape);
    return tensor;
  }
  tensor.spec.name = item.at(3).get<std::string>();
  tensor.spec.shape = item.at(4).get<Shape>();
  const auto bounds = item.at(5).get<std::vector<std::int64_t>>();
  if (bounds.size() != 2 * tensor.spec.shape.size()) throw std::invalid_argument("too few bounds");
  for (std::size_t d = 0; d < tensor.spec.shape.size(); ++d) {
    tensor.box.ranges.push_back({bounds[2 * d], bounds[2 * d + 1]});
  }
  return tensor;
}

// The tensors that metadata and header describe, when the two agree.
Result<std::vector<StoredTensor>> DecodeTensors(const std::string& text,
                                                const std::vector<SafetensorsEntry>& entries) {
  const Result<json> list = codec::ParseJson(text, kTensorsDepth);
  if (!list.ok()) return DataLoss("muster.tensors: " + list.status().message());
  if (!list->is_array() || list->size() != entries.size()) {
    return DataLoss(fmt::format("the header has {} tensors, and muster.tensors is no such list",
                                entries.size()));
  }
  std::vector<StoredTensor> tensors;
  tensors.reserve(entries.size());
  try {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const StoredTensor& tensor = tensors.emplace_back(TensorFrom((*list)[i], entries[i]));
      if (!Fits(tensor.box, tensor.spec.shape) || tensor.box.shape() != entries[i].shape ||
          tensor.name != StoredName(tensor.spec, tensor.box)) {
        return DataLoss(fmt::format("tensor {} is not what its metadata says", tensor.name));
      }
    }
  } catch (const std::exception& e) {
    return DataLoss(fmt::format("muster.tensors: {}", e.what()));
  }
  return tensors;
}

// For each alias a list: its index, cut and name, and the name of the tensor that is stored.
std::string EncodeAliases(const std::vector<StoredAlias>& aliases) {
  json list = json::array();
  for (const StoredAlias& alias : aliases) {
    list.push_back({alias.index, alias.cut_dimension, alias.name, alias.of});
  }
  return list.dump();
}

Result<std::vector<StoredAlias>> DecodeAliases(const std::string& text) {
  const Result<json> list = codec::ParseJson(text, kTensorsDepth);
  if (!list.ok()) return DataLoss("muster.aliases: " + list.status().message());
  if (!list->is_array()) return DataLoss("muster.aliases is no list");
  std::vector<StoredAlias> aliases;
  try {
    for (const json& item : *list) {
      aliases.push_back({item.at(0).get<std::size_t>(), item.at(2).get<std::string>(),
                         item.at(3).get<std::string>(), item.at(1).get<int>()});
    }
  } catch (const std::exception& e) {
    return DataLoss(fmt::format("muster.aliases: {}", e.what()));
  }
  return aliases;
}

// Reads the metadata of one file, remembering the first key that is missing or wrong.
class MetadataReader {
 public:
  explicit MetadataReader(const std::map<std::string, std::string>& metadata)
      : metadata_(metadata) {}

  const std::string& Text(const std::string& key) {
    static const std::string kNone;
    const auto it = metadata_.find(key);
    if (it != metadata_.end()) return it->second;
    Fail(key);
    return kNone;
  }
  template <class Int>
  Int Number(const std::string& key) {
    const std::string& text = Text(key);
    Int value{};
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end) Fail(key);
    return value;
  }
  std::uint64_t Hex(const std::string& key) {
    std::uint64_t value = 0;
    if (!FromHex(Text(key), &value)) Fail(key);
    return value;
  }
  [[nodiscard]] Status status() const {
    if (bad_key_.empty()) return {};
    return DataLoss(fmt::format("metadata {} is missing or wrong", bad_key_));
  }

 private:
  void Fail(const std::string& key) {
    if (bad_key_.empty()) bad_key_ = key;
  }

  const std::map<std::string, std::string>& metadata_;
  std::string bad_key_;
};

Result<std::vector<std::uint64_t>> DecodeDigests(const std::string& text, std::size_t count) {
  if (text.size() != count * kDigestDigits) {
    return DataLoss(fmt::format("the data has {} blocks, and the header digests of {}", count,
                                text.size() / kDigestDigits));
  }
  std::vector<std::uint64_t> digests(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (!FromHex(text.substr(i * kDigestDigits, kDigestDigits), &digests[i])) {
      return DataLoss(fmt::format("the digest of block {} is no number", i));
    }
  }
  return digests;
}

}  // namespace

std::vector<StoredAlias> AliasesIn(const std::vector<TensorSpec>& tensors) {
  std::vector<StoredAlias> aliases;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorSpec& tensor = tensors[i];
    if (tensor.alias_of.empty()) continue;
    aliases.push_back({i, tensor.name, tensor.alias_of, tensor.cut_dimension});
  }
  return aliases;
}

Result<std::string> EncodeShardHeader(const ShardHeader& header) {
  SafetensorsHeader safetensors;
  for (const StoredTensor& tensor : header.tensors) {
    safetensors.tensors.push_back(
        {tensor.name, tensor.spec.dtype, tensor.box.shape(), tensor.begin, tensor.end});
  }
  std::string digests;
  for (const std::uint64_t digest : header.block_digests) digests += ToHex(digest);
  std::string tensors;
  std::string aliases;
  try {
    tensors = EncodeTensors(header.tensors);
    if (!header.aliases.empty()) aliases = EncodeAliases(header.aliases);
  } catch (const std::exception& e) {
    return InvalidArgument(fmt::format("a tensor's name is no UTF-8: {}", e.what()));
  }
  safetensors.metadata = {{"muster.format", std::to_string(kFormatVersion)},
                          {"muster.job", header.job},
                          {"muster.lineage", ToHex(header.lineage.value())},
                          {"muster.step", std::to_string(header.key.step.value())},
                          {"muster.generation", std::to_string(header.key.generation.value())},
                          {"muster.rank", std::to_string(header.rank.value())},
                          {"muster.world_size", std::to_string(header.world_size)},
                          {"muster.tensors", std::move(tensors)},
                          {"muster.block_bytes", std::to_string(BlockBytes(header.data_bytes()))},
                          {"muster.block_algorithm", std::string(kBlockAlgorithm)},
                          {"muster.blocks", std::move(digests)}};
  if (!aliases.empty()) safetensors.metadata.emplace("muster.aliases", std::move(aliases));
  return EncodeSafetensors(safetensors, kDataAlignment);
}

Result<ShardHeader> DecodeShardHeader(std::string_view prefix, std::int64_t file_bytes) {
  const Result<SafetensorsHeader> safetensors = DecodeSafetensors(prefix, file_bytes);
  if (!safetensors.ok()) return safetensors.status();
  MetadataReader metadata(safetensors->metadata);
  const auto version = metadata.Number<int>("muster.format");
  MUSTER_RETURN_IF_ERROR(metadata.status());
  if (version != kFormatVersion) {
    return FailedPrecondition(fmt::format(
        "written in format {}, and this build reads format {}: use the build that wrote "
        "it, or a newer one",
        version, kFormatVersion));
  }
  ShardHeader header;
  header.job = metadata.Text("muster.job");
  header.lineage = Lineage(metadata.Hex("muster.lineage"));
  header.key.step = Step(metadata.Number<std::int64_t>("muster.step"));
  header.key.generation = Generation(metadata.Number<std::int64_t>("muster.generation"));
  header.rank = Rank(metadata.Number<std::int32_t>("muster.rank"));
  header.world_size = metadata.Number<std::int32_t>("muster.world_size");
  const auto block_bytes = metadata.Number<std::int64_t>("muster.block_bytes");
  const std::string& algorithm = metadata.Text("muster.block_algorithm");
  MUSTER_RETURN_IF_ERROR(metadata.status());
  if (block_bytes != BlockBytes(safetensors->data_bytes()) || algorithm != kBlockAlgorithm) {
    return DataLoss(fmt::format("blocks of {} bytes with {} digests are not of format {}",
                                block_bytes, algorithm, kFormatVersion));
  }
  Result<std::vector<StoredTensor>> tensors =
      DecodeTensors(metadata.Text("muster.tensors"), safetensors->tensors);
  if (!tensors.ok()) return tensors.status();
  header.tensors = *std::move(tensors);
  if (safetensors->metadata.contains("muster.aliases")) {
    Result<std::vector<StoredAlias>> aliases = DecodeAliases(metadata.Text("muster.aliases"));
    if (!aliases.ok()) return aliases.status();
    header.aliases = *std::move(aliases);
  }
  Result<std::vector<std::uint64_t>> digests =
      DecodeDigests(metadata.Text("muster.blocks"), BlocksOf(header.tensors).size());
  if (!digests.ok()) return digests.status();
  header.block_digests = *std::move(digests);
  return header;
}

}  // namespace muster::checkpoint
