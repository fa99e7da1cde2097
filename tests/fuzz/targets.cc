#include "tests/fuzz/targets.h"

#include <cstring>
#include <string_view>

#include "checkpoint/digest.h"
#include "checkpoint/format.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_header.h"
#include "protocol/check.h"
#include "protocol/codec.h"

namespace muster::fuzz {
namespace {

using namespace muster::checkpoint;

constexpr std::size_t kModeBytes = 1;
constexpr std::size_t kHintBytes = 8;

std::string WithLength(std::string_view text) {
  std::string prefix(kHintBytes, '\0');
  const std::uint64_t length = text.size();
  std::memcpy(prefix.data(), &length, kHintBytes);
  return prefix.append(text);
}

std::vector<TensorSpec> Tensors() {
  std::vector<TensorSpec> tensors = {{"w", DType::kFloat32, {5, 3}, 0},
                                     {"flat", DType::kBFloat16, {4, 2}, kFlat},
                                     {"listed", DType::kU8, {4, 4}, kListed},
                                     {"step", DType::kI64, {}, kReplicated},
                                     {"none", DType::kU8, {0, 2}, 0}};
  tensors.push_back(tensors[0]);
  tensors.back().name = "tied";
  tensors.back().alias_of = "w";
  tensors[2].logical_dtype = "MXFP4";
  return tensors;
}

CheckpointRecord Record() {
  CheckpointRecord record;
  record.job = "job";
  record.key = {Step(3), Generation(2)};
  record.lineage = Lineage(77);
  record.world_size = 2;
  record.directory = DirectoryName(record.key);
  record.tensors = Tensors();
  record.files = {{"r00000.safetensors", 5000, 1, Rank(0), {{2, Box{{{0, 4}, {0, 1}}}}}},
                  {"r00001-01.safetensors", 6000, 2, Rank(1), {{2, Box{{{0, 4}, {1, 4}}}}}}};
  record.bytes = 11000;
  return record;
}

}  // namespace

void ReadHeader(std::span<const std::uint8_t> bytes) {
  if (bytes.size() < kModeBytes + kHintBytes) return;
  std::uint64_t data_bytes = 0;
  std::memcpy(&data_bytes, bytes.data() + kModeBytes, kHintBytes);
  const auto rest = bytes.subspan(kModeBytes + kHintBytes);
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), rest.size());
  const std::string prefix = bytes[0] % 2 == 0 ? WithLength(text) : std::string(text);
  const auto file_bytes = static_cast<std::int64_t>(data_bytes / 2 + prefix.size());
  for (const std::int64_t size :
       {file_bytes, std::ssize(prefix) + static_cast<std::int64_t>(data_bytes % 4096)}) {
    const Result<SafetensorsHeader> plain = DecodeSafetensors(prefix, size);
    if (plain.ok()) MUSTER_CHECK(plain->data_start + plain->data_bytes() == size, "exact");
    const Result<ShardHeader> header = DecodeShardHeader(prefix, size);
    if (!header.ok()) continue;
    const Result<std::string> again = EncodeShardHeader(*header);
    if (!again.ok()) continue;  // longer than a header may be
    const Result<ShardHeader> read =
        DecodeShardHeader(*again, std::ssize(*again) + header->data_bytes());
    MUSTER_CHECK(read.ok() && *read == *header, "what was read can be written and read again");
  }
}

void ReadManifest(std::span<const std::uint8_t> bytes) {
  std::string text = "{\"muster_manifest\":" + std::to_string(kFormatVersion) + ",\"checkpoint\":";
  text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  text += ",\"digest\":\"";
  text += ToHex(DigestOf(text));
  text += "\"}\n";
  const Result<Manifest> manifest = DecodeManifest(text);
  if (!manifest.ok()) return;
  MUSTER_CHECK(CheckRecord(manifest->record).ok(), "a manifest holds a record that is whole");
  const Result<std::string> again = EncodeManifest(manifest->record);
  MUSTER_CHECK(again.ok(), "what was read can be written");
  MUSTER_CHECK(DecodeManifest(*again)->record == manifest->record, "and read again");
}

std::vector<std::string> HeaderSeeds() {
  std::vector<std::string> seeds;
  for (const std::int32_t rank : {0, 1}) {
    const CheckpointRecord record = Record();
    ShardHeader header{"job", record.key, record.lineage, Rank(rank), 2, {}, {}, {}};
    header.tensors = *LayoutOf(record.tensors, Rank(rank), 2,
                               record.files[static_cast<std::size_t>(rank)].listed);
    if (rank == 0) header.aliases = AliasesIn(record.tensors);
    header.block_digests.assign(BlocksOf(header.tensors).size(), 0x0123456789abcdef);
    std::string text = EncodeShardHeader(header)->substr(kHintBytes);
    text.resize(text.find_last_not_of(' ') + 1);  // a valid header without padding
    std::string hint(kHintBytes, '\0');
    const auto data_bytes = static_cast<std::uint64_t>(header.data_bytes());
    std::memcpy(hint.data(), &data_bytes, kHintBytes);
    seeds.push_back(std::string(1, '\0') + hint + text);
    seeds.push_back(std::string(1, '\1') + hint + WithLength(text));
  }
  return seeds;
}

std::vector<std::string> ManifestSeeds() {
  CheckpointEntry entry;
  entry.record = Record();
  return {EncodeCheckpointEntry(entry)};
}

}  // namespace muster::fuzz
