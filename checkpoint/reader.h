// Reads checkpoints at any world size, and believes nothing that it has not verified.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "checkpoint/file_system.h"
#include "checkpoint/manifest.h"
#include "protocol/box.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::checkpoint {

// Reads and verifies the manifest in `directory`, a name below `root` that the coordinator gave;
// with a digest, it must be the manifest of that digest. kNotFound when there is none (the
// checkpoint was removed, or never announced), kDataLoss when it is damaged or another one.
[[nodiscard]] Result<Manifest> ReadManifest(FileSystem& fs, const std::string& root,
                                            const std::string& directory,
                                            std::optional<std::uint64_t> digest = std::nullopt);

// A box of a tensor and the buffer that it goes to, contiguous and row-major.
struct WantedBox {
  std::size_t tensor = 0;  // in the record's list
  Box box;
  std::span<std::byte> into;
};

struct LoadReport {
  std::int64_t files = 0;       // opened
  std::int64_t bytes_read = 0;  // headers and whole blocks
  std::int64_t bytes_used = 0;  // of the wanted boxes
};

// Fills all wanted boxes. Opens only files that hold a part of one, reads only the blocks needed,
// and verifies size, header and each of these blocks before it uses a byte of them. Ok only when
// every byte of every buffer is from the checkpoint; after an error the buffers hold anything.
// kDataLoss, naming the file and the block, when something stored is missing, damaged or from
// another checkpoint; kInvalidArgument for a record that does not pass CheckRecord, a tensor that
// is not in it, a box outside of its tensor or a buffer of another size. Blocks; beyond the buffers
// it needs the header of one file and 8 blocks of memory.
[[nodiscard]] Result<LoadReport> LoadBoxes(FileSystem& fs, const std::string& root,
                                           const CheckpointRecord& record,
                                           std::span<const WantedBox> wanted);

// Reads every byte of the checkpoint and verifies it, manifest left out; errors as LoadBoxes.
Status VerifyCheckpoint(FileSystem& fs, const std::string& root, const CheckpointRecord& record);

}  // namespace muster::checkpoint
