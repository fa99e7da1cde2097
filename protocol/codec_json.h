// JSON text as peers and disks of unknown reliability deserve it. Internal to the codec; other
// layers that store JSON may use ParseJson too.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "protocol/status.h"

namespace muster::codec {

// The value of `text`, which must be one JSON value in UTF-8 and nothing else. A key that comes
// twice, nesting beyond `max_depth` and invalid UTF-8 are refused while reading, before they cost
// memory; kInvalidArgument says where. Memory stays within a small multiple of the text. Never
// throws.
[[nodiscard]] Result<nlohmann::json> ParseJson(std::string_view text, std::size_t max_depth);

// One line, ASCII spaces nowhere, keys in order. Bytes that are not UTF-8 become U+FFFD.
[[nodiscard]] std::string Dump(const nlohmann::json& value);

// `text` as valid UTF-8 (other bytes become U+FFFD) of at most `max_bytes`, cut before the
// character that would not fit.
[[nodiscard]] std::string CutText(std::string_view text, std::size_t max_bytes);

// "\"text\"" for an error message: at most 40 bytes, anything but printable ASCII as '?'.
[[nodiscard]] std::string Quoted(std::string_view text);

}  // namespace muster::codec
