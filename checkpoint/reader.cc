#include "checkpoint/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "checkpoint/format.h"
#include "checkpoint/reshard.h"
#include "checkpoint/shard_reader.h"

namespace muster::checkpoint {
namespace {

// A part of a wanted box that one file has.
struct Piece {
  const WantedBox* wanted = nullptr;
  Box part;
};

Status CheckWanted(const CheckpointRecord& record, const WantedBox& wanted) {
  if (wanted.tensor >= record.tensors.size()) {
    return InvalidArgument(fmt::format("tensor number {} is wanted of a checkpoint with {}",
                                       wanted.tensor, record.tensors.size()));
  }
  const TensorSpec& tensor = record.tensors[wanted.tensor];
  if (!Fits(wanted.box, tensor.shape)) {
    return InvalidArgument(fmt::format("tensor {}: the wanted box {} lies outside of its shape {}",
                                       tensor.name, wanted.box.ToString(),
                                       Box::Whole(tensor.shape).ToString()));
  }
  const std::int64_t bytes = ByteCount(tensor, wanted.box);
  if (std::ssize(wanted.into) != bytes) {
    return InvalidArgument(fmt::format("tensor {}: the box {} has {} bytes, and its buffer {}",
                                       tensor.name, wanted.box.ToString(), bytes,
                                       wanted.into.size()));
  }
  return {};
}

// Which parts of the wanted boxes each rank's file has. Fails unless the parts are all of them.
Result<std::map<Rank, std::vector<Piece>>> PiecesByRank(const CheckpointRecord& record,
                                                        std::span<const WantedBox> wanted) {
  std::map<Rank, std::vector<Piece>> pieces;
  for (const WantedBox& want : wanted) {
    MUSTER_RETURN_IF_ERROR(CheckWanted(record, want));
    const TensorSpec& tensor = record.tensors[want.tensor];
    std::int64_t covered = 0;
    for (Source& source : SourcesOf(tensor, CutRule::kStored, record.world_size, want.box)) {
      covered += source.box.count();
      pieces[source.rank].push_back({&want, std::move(source.box)});
    }
    if (covered != want.box.count()) {
      return Internal(fmt::format("tensor {}: the files hold {} of the {} elements of box {}",
                                  tensor.name, covered, want.box.count(), want.box.ToString()));
    }
  }
  return pieces;
}

// A piece and where its file has the tensor's part.
struct PlacedPiece {
  const Piece* piece = nullptr;
  const StoredTensor* stored = nullptr;
};

Result<std::vector<PlacedPiece>> PlacePieces(const ShardHeader& header,
                                             const std::vector<Piece>& pieces) {
  std::map<std::size_t, const StoredTensor*> stored;
  for (const StoredTensor& tensor : header.tensors) stored.emplace(tensor.index, &tensor);
  std::vector<PlacedPiece> placed;
  for (const Piece& piece : pieces) {
    const auto it = stored.find(piece.wanted->tensor);
    if (it == stored.end()) {
      return Internal(fmt::format("the file of rank {} has no part of tensor {}",
                                  header.rank.value(), piece.wanted->tensor));
    }
    placed.push_back({&piece, it->second});
  }
  // In the order of the file, so that each block is read once.
  std::stable_sort(placed.begin(), placed.end(), [](const PlacedPiece& a, const PlacedPiece& b) {
    return a.stored->begin < b.stored->begin;
  });
  return placed;
}

// The blocks that the pieces touch. Neighbouring runs mostly share a block or touch, so the list
// stays short however many runs there are.
std::vector<BlockRange> BlocksOf(const std::vector<PlacedPiece>& pieces) {
  std::vector<BlockRange> blocks;
  for (const PlacedPiece& placed : pieces) {
    const Piece& piece = *placed.piece;
    const std::int64_t element = SizeOf(placed.stored->spec.dtype);
    RunCursor cursor(placed.stored->box, piece.wanted->box, piece.part);
    for (; cursor.valid(); cursor.Advance()) {
      const std::int64_t begin = placed.stored->begin + cursor.run().from * element;
      const std::int64_t end = begin + cursor.run().count * element;
      const BlockRange range{begin / kBlockBytes, (end - 1) / kBlockBytes + 1};
      if (!blocks.empty() && blocks.back().first <= range.first &&
          range.first <= blocks.back().last) {
        blocks.back().last = std::max(blocks.back().last, range.last);
      } else {
        blocks.push_back(range);
      }
    }
  }
  return MergeRanges(std::move(blocks));
}

Status Scatter(ShardReader& shard, const PlacedPiece& placed) {
  const Piece& piece = *placed.piece;
  const std::int64_t element = SizeOf(placed.stored->spec.dtype);
  RunCursor cursor(placed.stored->box, piece.wanted->box, piece.part);
  for (; cursor.valid(); cursor.Advance()) {
    const Run& run = cursor.run();
    MUSTER_RETURN_IF_ERROR(
        shard.Read(placed.stored->begin + run.from * element,
                   piece.wanted->into.subspan(static_cast<std::size_t>(run.to * element),
                                              static_cast<std::size_t>(run.count * element))));
  }
  return {};
}

}  // namespace

Result<Manifest> ReadManifest(FileSystem& fs, const std::string& root, const std::string& directory,
                              std::optional<std::uint64_t> digest) {
  const std::optional<CheckpointKey> key = ParseDirectoryName(directory);
  if (!key) {
    return InvalidArgument(
        fmt::format("{} is not the name of a checkpoint's directory", directory));
  }
  const std::string path = JoinPath(JoinPath(root, directory), std::string(kManifestName));
  const Result<std::string> text = ReadWhole(fs, path, kMaxManifestBytes);
  if (!text.ok()) {
    // A disk that cannot give it back (EIO, ESTALE) has lost it.
    const bool lost = text.status().code() == Code::kInternal;
    return Status(lost ? Code::kDataLoss : text.status().code(), text.status().message());
  }
  Result<Manifest> manifest = DecodeManifest(*text);
  if (!manifest.ok()) {
    return Status(manifest.status().code(),
                  fmt::format("{}: {}", path, manifest.status().message()));
  }
  if (manifest->record.key != *key) {
    return DataLoss(fmt::format("{}: is the manifest of {}", path, manifest->record.directory));
  }
  if (digest && *digest != manifest->digest) {
    return DataLoss(fmt::format("{}: has digest {}, and the announced checkpoint {}", path,
                                ToHex(manifest->digest), ToHex(*digest)));
  }
  return manifest;
}

Result<LoadReport> LoadBoxes(FileSystem& fs, const std::string& root,
                             const CheckpointRecord& record, std::span<const WantedBox> wanted) {
  MUSTER_RETURN_IF_ERROR(CheckRecord(record));
  const Result<std::map<Rank, std::vector<Piece>>> pieces = PiecesByRank(record, wanted);
  if (!pieces.ok()) return pieces.status();
  LoadReport report;
  for (const WantedBox& want : wanted) report.bytes_used += std::ssize(want.into);
  for (const auto& [rank, of_rank] : *pieces) {
    Result<ShardReader> shard = ShardReader::Open(fs, root, record, rank);
    if (!shard.ok()) return shard.status();
    const Result<std::vector<PlacedPiece>> placed = PlacePieces(shard->header(), of_rank);
    if (!placed.ok()) return placed.status();
    shard->Expect(BlocksOf(*placed));
    for (const PlacedPiece& piece : *placed) MUSTER_RETURN_IF_ERROR(Scatter(*shard, piece));
    ++report.files;
    report.bytes_read += shard->bytes_read();
  }
  return report;
}

Status VerifyCheckpoint(FileSystem& fs, const std::string& root, const CheckpointRecord& record) {
  MUSTER_RETURN_IF_ERROR(CheckRecord(record));
  for (const FileRecord& file : record.files) {
    Result<ShardReader> shard = ShardReader::Open(fs, root, record, file.rank);
    if (!shard.ok()) return shard.status();
    shard->Expect(MergeRanges({{0, BlockCount(shard->header().data_bytes())}}));
    MUSTER_RETURN_IF_ERROR(shard->VerifyExpected());
  }
  return {};
}

}  // namespace muster::checkpoint
