#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "protocol/check.h"
#include "protocol/codec_json.h"

namespace muster::checkpoint {
namespace {

using nlohmann::json;

constexpr const char* kMetadataKey = "__metadata__";
// Header object, tensor object, array.
constexpr std::size_t kHeaderDepth = 3;

// The value as an integer in [0, 2^63); nothing for anything else, 1.0 included.
std::optional<std::int64_t> AsCount(const json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(number);
}

// Why these entries, in the order of their data, do not lie one right after the other; empty when
// they do.
std::string FindMisfit(const std::vector<SafetensorsEntry>& tensors) {
  std::int64_t position = 0;
  for (const SafetensorsEntry& entry : tensors) {
    if (entry.begin != position || entry.end < entry.begin) {
      return fmt::format("tensor {} has the bytes [{}, {}), and the data before it ends at {}",
                         entry.name, entry.begin, entry.end, position);
    }
    const Result<std::int64_t> elements = CountElements(entry.shape);
    if (!elements.ok())
      return fmt::format("tensor {}: {}", entry.name, elements.status().message());
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(*elements, SizeOf(entry.dtype), &bytes) ||
        bytes != entry.end - entry.begin) {
      return fmt::format("tensor {} has {} elements of {} bytes, and {} bytes of data", entry.name,
                         *elements, SizeOf(entry.dtype), entry.end - entry.begin);
    }
    position = entry.end;
  }
  return {};
}

std::optional<SafetensorsEntry> EntryFrom(const std::string& name, const json& value) {
  if (!value.is_object() || value.size() != 3) return std::nullopt;
  const auto dtype_name = value.find("dtype");
  const auto shape = value.find("shape");
  const auto offsets = value.find("data_offsets");
  if (dtype_name == value.end() || !dtype_name->is_string() || shape == value.end() ||
      !shape->is_array() || offsets == value.end() || !offsets->is_array() ||
      offsets->size() != 2) {
    return std::nullopt;
  }
  SafetensorsEntry entry;
  entry.name = name;
  const std::optional<DType> dtype = DTypeFromName(dtype_name->get_ref<const std::string&>());
  const std::optional<std::int64_t> begin = AsCount((*offsets)[0]);
  const std::optional<std::int64_t> end = AsCount((*offsets)[1]);
  if (!dtype || !begin || !end) return std::nullopt;
  for (const json& element : *shape) {
    const std::optional<std::int64_t> extent = AsCount(element);
    if (!extent) return std::nullopt;
    entry.shape.push_back(*extent);
  }
  entry.dtype = *dtype;
  entry.begin = *begin;
  entry.end = *end;
  return entry;
}

Status ReadMembers(const json& root, SafetensorsHeader* header) {
  for (const auto& [name, value] : root.items()) {
    if (name != kMetadataKey) {
      std::optional<SafetensorsEntry> entry = EntryFrom(name, value);
      if (!entry) {
        return DataLoss(fmt::format("tensor {} lacks a known dtype, a shape or two offsets", name));
      }
      header->tensors.push_back(*std::move(entry));
      continue;
    }
    if (!value.is_object()) return DataLoss("the metadata is no object");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) return DataLoss(fmt::format("metadata {} is no text", key));
      header->metadata.emplace(key, text.get<std::string>());
    }
  }
  return {};
}

std::string EncodeJson(const SafetensorsHeader& header) {
  std::string text = "{";
  if (!header.metadata.empty()) {
    text += fmt::format("\"{}\":{}", kMetadataKey, json(header.metadata).dump());
  }
  for (const SafetensorsEntry& entry : header.tensors) {
    text += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                        text.size() > 1 ? "," : "", json(entry.name).dump(), DTypeName(entry.dtype),
                        fmt::join(entry.shape, ","), entry.begin, entry.end);
  }
  return text + "}";
}

}  // namespace

Result<std::string> EncodeSafetensors(const SafetensorsHeader& header, std::int64_t alignment) {
  MUSTER_CHECK(alignment > 0, "an alignment is at least one byte");
  std::set<std::string_view> names = {kMetadataKey};
  for (const SafetensorsEntry& entry : header.tensors) {
    if (!names.insert(entry.name).second) {
      return InvalidArgument(
          fmt::format("two tensors of a file would be named {}: rename one", entry.name));
    }
  }
  if (std::string misfit = FindMisfit(header.tensors); !misfit.empty()) {
    return InvalidArgument(std::move(misfit));
  }
  std::string text;
  try {
    text = EncodeJson(header);
  } catch (const std::exception& e) {
    return InvalidArgument(
        fmt::format("a tensor's name or the metadata is no UTF-8: {}", e.what()));
  }
  const std::int64_t used = kLengthBytes + static_cast<std::int64_t>(text.size());
  const std::int64_t data_start = (used + alignment - 1) / alignment * alignment;
  const std::int64_t length = data_start - kLengthBytes;
  if (length > kMaxHeaderBytes) {
    return InvalidArgument(
        fmt::format("a header of {} bytes is longer than the {} that a file may "
                    "have: use fewer tensors or more ranks",
                    length, kMaxHeaderBytes));
  }
  std::string prefix;
  for (int i = 0; i < kLengthBytes; ++i) {
    prefix += static_cast<char>(static_cast<std::uint64_t>(length) >> (8U * unsigned(i)));
  }
  prefix += text;
  prefix.resize(static_cast<std::size_t>(data_start), ' ');
  return prefix;
}

Result<std::int64_t> DataStartOf(std::string_view first_bytes, std::int64_t file_bytes) {
  if (file_bytes < kLengthBytes || first_bytes.size() < std::size_t{kLengthBytes}) {
    return DataLoss(fmt::format("{} bytes are too few for a safetensors file", file_bytes));
  }
  std::uint64_t length = 0;
  for (int i = kLengthBytes; i-- > 0;) {
    length = (length << 8U) | static_cast<unsigned char>(first_bytes[static_cast<std::size_t>(i)]);
  }
  const auto bound =
      static_cast<std::uint64_t>(std::min(kMaxHeaderBytes, file_bytes - kLengthBytes));
  if (length < 2 || length > bound) {
    return DataLoss(fmt::format("the header's length is {}, and can be 2 to {}", length, bound));
  }
  return kLengthBytes + static_cast<std::int64_t>(length);
}

Result<SafetensorsHeader> DecodeSafetensors(std::string_view prefix, std::int64_t file_bytes) {
  const Result<std::int64_t> data_start = DataStartOf(prefix, file_bytes);
  if (!data_start.ok()) return data_start.status();
  if (static_cast<std::int64_t>(prefix.size()) != *data_start) {
    return DataLoss(
        fmt::format("the header has {} bytes, and says {}", prefix.size(), *data_start));
  }
  std::string_view text = prefix.substr(kLengthBytes);
  text = text.substr(0, text.find_last_not_of(' ') + 1);
  if (text.empty() || text.front() != '{' || text.back() != '}') {
    return DataLoss("the header is no JSON object padded with spaces");
  }
  const Result<json> root = codec::ParseJson(text, kHeaderDepth);
  if (!root.ok()) return DataLoss("the header: " + root.status().message());
  SafetensorsHeader header;
  header.data_start = *data_start;
  MUSTER_RETURN_IF_ERROR(ReadMembers(*root, &header));
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  if (std::string misfit = FindMisfit(header.tensors); !misfit.empty()) {
    return DataLoss(std::move(misfit));
  }
  if (header.data_start + header.data_bytes() != file_bytes) {
    return DataLoss(fmt::format("the file has {} bytes, and its header describes {}", file_bytes,
                                header.data_start + header.data_bytes()));
  }
  return header;
}

}  // namespace muster::checkpoint
