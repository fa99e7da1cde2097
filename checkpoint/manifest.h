// The manifest: the record of a checkpoint as a file in its directory, so that the directory can be
// read elsewhere, and an index rebuilt. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::checkpoint {

inline constexpr std::int64_t kMaxManifestBytes = 100'000'000;

struct Manifest {
  CheckpointRecord record;
  std::uint64_t digest = 0;  // its own, of all bytes before the digest
};

// One line of JSON: {"muster_manifest":1,"checkpoint":…,"digest":"…"}. kInvalidArgument when the
// record does not pass CheckRecord.
[[nodiscard]] Result<std::string> EncodeManifest(const CheckpointRecord& record);

// Reads it back. kDataLoss when any byte is not as it was written, or when the record in it does
// not pass CheckRecord; kFailedPrecondition for another version of the format.
[[nodiscard]] Result<Manifest> DecodeManifest(std::string_view text);

}  // namespace muster::checkpoint
