// JSON text <-> values. Decoding checks types, bounds (protocol/limits.h), enum names, nesting and
// names; a text that fails is refused with a reason that names the field. Unknown fields are
// ignored, so that a newer minor version can add some. Nothing throws. Thread-safe: no state.
//
// 64-bit ids and digests are strings of 16 hexadecimal digits, bytes strings of two each, durations
// integers of nanoseconds under a name that ends in `_ns`, enums lower-case names, absent optionals
// absent.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "protocol/messages.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster {

// {"type":"hello", …}
[[nodiscard]] std::string Encode(const Message& message);
[[nodiscard]] Result<Message> Decode(std::string_view text);

[[nodiscard]] std::string EncodeJobRecord(const JobRecord& record);
[[nodiscard]] Result<JobRecord> DecodeJobRecord(std::string_view text);
[[nodiscard]] std::string EncodeCheckpointEntry(const CheckpointEntry& entry);
[[nodiscard]] Result<CheckpointEntry> DecodeCheckpointEntry(std::string_view text);
// Lists as texts of their own, for those who store a list once and refer to it from many records.
// Equal lists give equal texts.
[[nodiscard]] std::string EncodeTensors(const std::vector<TensorSpec>& tensors);
[[nodiscard]] Result<std::vector<TensorSpec>> DecodeTensors(std::string_view text);
[[nodiscard]] std::string EncodeFiles(const std::vector<FileRecord>& files);
[[nodiscard]] Result<std::vector<FileRecord>> DecodeFiles(std::string_view text);

// Lower-case names as in the JSON: "lease_expired", "apply", "live", …
[[nodiscard]] std::string_view NameOf(Cause cause);
[[nodiscard]] std::string_view NameOf(Outcome outcome);
[[nodiscard]] std::string_view NameOf(Stage stage);
[[nodiscard]] std::string_view NameOf(RestoreSource source);
[[nodiscard]] std::string_view NameOf(CheckpointState state);
[[nodiscard]] std::string_view NameOf(EndKind kind);
[[nodiscard]] std::string_view NameOf(Backend backend);
// The type tag of a message: "hello".
[[nodiscard]] std::string_view NameOf(const Message& message);

}  // namespace muster
