#include "checkpoint/shard_header.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "checkpoint/safetensors.h"
#include "protocol/codec_json.h"

namespace muster::checkpoint {
namespace {

using nlohmann::json;

constexpr std::size_t kDigestDigits = 16;
// List, tensor, list of ranges, range.
constexpr std::size_t kTensorsDepth = 4;
constexpr std::string_view kBlockAlgorithm = "xxh3-64";

std::string EncodeTensors(const std::vector<StoredTensor>& tensors) {
  json list = json::array();
  for (const StoredTensor& tensor : tensors) {
    json box = json::array();
    for (const Range& range : tensor.box.ranges) box.push_back({range.lo, range.hi});
    list.push_back({{"index", tensor.index},
                    {"name", tensor.spec.name},
                    {"dtype", DTypeName(tensor.spec.dtype)},
                    {"shape", tensor.spec.shape},
                    {"cut", tensor.spec.cut_dimension},
                    {"box", std::move(box)},
                    {"stored", tensor.name}});
  }
  return list.dump();
}

// A tensor as EncodeTensors writes it; json's own exceptions say that it is not one.
StoredTensor TensorFrom(const json& value) {
  StoredTensor tensor;
  tensor.index = value.at("index").get<std::size_t>();
  tensor.spec.name = value.at("name").get<std::string>();
  const auto dtype_name = value.at("dtype").get<std::string>();
  const std::optional<DType> dtype = DTypeFromName(dtype_name);
  if (!dtype) throw std::invalid_argument("unknown dtype " + dtype_name);
  tensor.spec.dtype = *dtype;
  tensor.spec.shape = value.at("shape").get<Shape>();
  tensor.spec.cut_dimension = value.at("cut").get<int>();
  for (const json& range : value.at("box")) {
    tensor.box.ranges.push_back({range.at(0).get<std::int64_t>(), range.at(1).get<std::int64_t>()});
  }
  tensor.name = value.at("stored").get<std::string>();
  return tensor;
}

Result<std::vector<StoredTensor>> DecodeTensors(const std::string& text) {
  const Result<json> list = codec::ParseJson(text, kTensorsDepth);
  if (!list.ok()) return DataLoss("muster.tensors: " + list.status().message());
  if (!list->is_array()) return DataLoss("muster.tensors is no list");
  try {
    std::vector<StoredTensor> tensors;
    for (const json& value : *list) tensors.push_back(TensorFrom(value));
    return tensors;
  } catch (const std::exception& e) {
    return DataLoss(fmt::format("muster.tensors: {}", e.what()));
  }
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

Result<std::vector<std::uint64_t>> DecodeDigests(const std::string& text, std::int64_t data_bytes) {
  const auto count = static_cast<std::size_t>(BlockCount(data_bytes));
  if (text.size() != count * kDigestDigits) {
    return DataLoss(fmt::format("{} bytes of data have {} block digests, and the header has {}",
                                data_bytes, count, text.size() / kDigestDigits));
  }
  std::vector<std::uint64_t> digests(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (!FromHex(text.substr(i * kDigestDigits, kDigestDigits), &digests[i])) {
      return DataLoss(fmt::format("the digest of block {} is no number", i));
    }
  }
  return digests;
}

// Gives each tensor of the metadata the place that the safetensors header has for its name, when
// the two lists describe the same.
Status PlaceTensors(const SafetensorsHeader& safetensors, std::vector<StoredTensor>* tensors) {
  std::map<std::string_view, const SafetensorsEntry*> by_name;
  for (const SafetensorsEntry& entry : safetensors.tensors) by_name.emplace(entry.name, &entry);
  if (by_name.size() != tensors->size()) {
    return DataLoss(fmt::format("the header lists {} tensors, its metadata {}", by_name.size(),
                                tensors->size()));
  }
  for (StoredTensor& tensor : *tensors) {
    const auto it = by_name.find(tensor.name);
    if (it == by_name.end() || !Fits(tensor.box, tensor.spec.shape) ||
        tensor.name != StoredName(tensor.spec, tensor.box) ||
        it->second->dtype != tensor.spec.dtype || it->second->shape != tensor.box.shape()) {
      return DataLoss(fmt::format("tensor {} is not what its metadata says", tensor.name));
    }
    tensor.begin = it->second->begin;
    tensor.end = it->second->end;
  }
  return {};
}

}  // namespace

std::int64_t BlockCount(std::int64_t data_bytes) {
  return data_bytes / kBlockBytes + (data_bytes % kBlockBytes != 0 ? 1 : 0);
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
  try {
    tensors = EncodeTensors(header.tensors);
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
                          {"muster.block_bytes", std::to_string(kBlockBytes)},
                          {"muster.block_algorithm", std::string(kBlockAlgorithm)},
                          {"muster.blocks", std::move(digests)}};
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
  if (block_bytes != kBlockBytes || algorithm != kBlockAlgorithm) {
    return DataLoss(fmt::format("blocks of {} bytes with {} digests are not of format {}",
                                block_bytes, algorithm, kFormatVersion));
  }
  Result<std::vector<StoredTensor>> tensors = DecodeTensors(metadata.Text("muster.tensors"));
  if (!tensors.ok()) return tensors.status();
  Result<std::vector<std::uint64_t>> digests =
      DecodeDigests(metadata.Text("muster.blocks"), safetensors->data_bytes());
  if (!digests.ok()) return digests.status();
  header.tensors = *std::move(tensors);
  header.block_digests = *std::move(digests);
  MUSTER_RETURN_IF_ERROR(PlaceTensors(*safetensors, &header.tensors));
  return header;
}

}  // namespace muster::checkpoint
