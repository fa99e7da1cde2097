// The header of a safetensors file, written and strictly read.
//
//   file   = length header data
//   length = number of bytes of the header, 8 bytes, little-endian
//   header = JSON object, padded at its end with spaces:
//            { "__metadata__": { name: text, … },
//              tensor name: { "dtype": "F32", "shape": [2,3], "data_offsets": [begin, end] }, … }
//   data   = the tensors, row-major, little-endian, one right after the other
//
// Offsets count from the start of the data. There are no holes, no overlaps and no bytes after the
// last tensor, so that the length of the file is implied by its header.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/box.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// What the other readers of the format accept.
inline constexpr std::int64_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::int64_t kLengthBytes = 8;

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::int64_t begin = 0;  // bytes from the start of the data
  std::int64_t end = 0;
  friend bool operator==(const SafetensorsEntry&, const SafetensorsEntry&) = default;
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsEntry> tensors;  // in the order of their data
  std::int64_t data_start = 0;            // bytes from the start of the file: length and header
  friend bool operator==(const SafetensorsHeader&, const SafetensorsHeader&) = default;

  [[nodiscard]] std::int64_t data_bytes() const { return tensors.empty() ? 0 : tensors.back().end; }
};

// Length and header as the file starts with them, padded so that the data starts at a multiple of
// `alignment` bytes; `data_start` is not looked at. kInvalidArgument for a name that comes twice or
// is no UTF-8, entries that leave a hole, or a header longer than kMaxHeaderBytes.
[[nodiscard]] Result<std::string> EncodeSafetensors(const SafetensorsHeader& header,
                                                    std::int64_t alignment);

// The first byte after the header, from the first 8 bytes of a file of `file_bytes` bytes.
// kDataLoss when the file cannot hold such a header; only then is there a reason to read on.
[[nodiscard]] Result<std::int64_t> DataStartOf(std::string_view first_bytes,
                                               std::int64_t file_bytes);

// Reads what EncodeSafetensors wrote, or any other valid header. `prefix` is the file up to its
// data_start. kDataLoss says what is wrong with it; nothing of it is then to be believed.
[[nodiscard]] Result<SafetensorsHeader> DecodeSafetensors(std::string_view prefix,
                                                          std::int64_t file_bytes);

}  // namespace muster::checkpoint
