#include "worker/client/state_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "checkpoint/io_pool.h"
#include "checkpoint/match.h"
#include "checkpoint/reader.h"
#include "checkpoint/reshard.h"
#include "checkpoint/tie_check.h"

namespace muster::worker {
namespace {

// Of what goes to a device so much is loaded into pinned memory and then copied, again and again.
std::size_t BatchBytes(const DeviceState& device) { return 4 * device.staging_bytes(); }

// A box in the memory of a device that is to be filled.
struct DevicePart {
  std::size_t stored = 0;  // the tensor in the checkpoint's list
  Box box;
  std::span<std::byte> to;
};

// What of the stored tensors goes where.
struct Wanted {
  std::vector<checkpoint::WantedBox> host;
  std::vector<DevicePart> device;
};

// Cuts a box into pieces of at most `limit` elements, each contiguous where the box is row-major.
std::vector<Box> CutInPieces(const Box& whole, std::int64_t limit) {
  std::vector<Box> pieces;
  std::vector<Box> rest = {whole};  // the last one comes first
  while (!rest.empty()) {
    Box box = std::move(rest.back());
    rest.pop_back();
    if (box.count() <= limit) {
      pieces.push_back(std::move(box));
      continue;
    }
    const auto cut = std::ranges::find_if(box.ranges, [](Range r) { return r.size() > 1; });
    const auto d = static_cast<std::size_t>(cut - box.ranges.begin());
    const Range range = *cut;
    const std::int64_t slices = std::max<std::int64_t>(1, limit / (box.count() / range.size()));
    std::vector<Box> parts;
    for (std::int64_t lo = range.lo; lo < range.hi; lo += slices) {
      parts.push_back(box);
      parts.back().ranges[d] = {lo, std::min(range.hi, lo + slices)};
    }
    rest.insert(rest.end(), parts.rbegin(), parts.rend());
  }
  return pieces;
}

void Want(const StateTable& table, const TensorSlot& slot, std::size_t stored, BoxBytes part,
          Wanted* wanted) {
  const DeviceState* device = table.DeviceOf(slot);
  if (device == nullptr) {
    wanted->host.push_back({stored, std::move(part.box), part.bytes});
    return;
  }
  const std::int64_t element = SizeOf(slot.spec.dtype);
  for (Box& piece :
       CutInPieces(part.box, static_cast<std::int64_t>(BatchBytes(*device)) / element)) {
    const auto size = static_cast<std::size_t>(piece.count() * element);
    if (size == 0) continue;
    wanted->device.push_back({stored, std::move(piece), part.bytes.first(size)});
    part.bytes = part.bytes.subspan(size);
  }
}

// `pairs` are by name, in the order of the table.
Wanted WantedOf(const StateTable& table, const std::vector<checkpoint::TensorMatch::Pair>& pairs) {
  const std::vector<TensorSlot*> slots = table.Stored();
  Wanted wanted;
  for (const checkpoint::TensorMatch::Pair& pair : pairs) {
    const TensorSlot& slot = *slots[pair.wanted];
    if (slot.kind == TensorKind::kReplicated) {
      Want(table, slot, pair.stored, {Box::Whole(slot.spec.shape), slot.memory}, &wanted);
    } else if (slot.kind == TensorKind::kSharded) {
      for (BoxBytes& part : slot.Next()) {
        Want(table, slot, pair.stored, std::move(part), &wanted);
      }
    }
  }
  return wanted;
}

class Loader {
 public:
  Loader(checkpoint::FileSystem& fs, const std::string& root, const CheckpointRecord& record,
         const checkpoint::ReadOptions& options, std::int64_t* bytes)
      : fs_(fs), root_(root), record_(record), options_(options), bytes_(bytes) {}

  Status Load(std::span<const checkpoint::WantedBox> wanted) {
    const Result<checkpoint::LoadReport> loaded =
        checkpoint::LoadBoxes(fs_, root_, record_, wanted, options_);
    if (loaded.ok()) *bytes_ += loaded->bytes_read;
    return loaded.status();
  }

  // Sets `*device_failed` when the error is not of the files.
  Status LoadToDevice(DeviceState& device, std::span<const DevicePart> parts, bool* device_failed) {
    std::size_t total = 0;
    for (const DevicePart& part : parts) total += part.to.size();
    if (total == 0) return {};
    *device_failed = true;
    Result<DeviceMemory> pinned =
        device.device().AllocatePinned(std::min(total, BatchBytes(device)));
    if (!pinned.ok()) return pinned.status();
    while (!parts.empty()) {
      std::span<std::byte> room = pinned->host();
      std::vector<checkpoint::WantedBox> batch;
      while (batch.size() < parts.size() && parts[batch.size()].to.size() <= room.size()) {
        const DevicePart& part = parts[batch.size()];
        batch.push_back({part.stored, part.box, room.first(part.to.size())});
        room = room.subspan(part.to.size());
      }
      *device_failed = false;
      MUSTER_RETURN_IF_ERROR(Load(batch));
      *device_failed = true;
      for (std::size_t i = 0; i < batch.size(); ++i) {
        device.Copy(parts[i].to.data(), batch[i].into.data(), parts[i].to.size());
      }
      if (Status copied = device.Wait(); !copied.ok()) {
        device.Retire(std::move(*pinned));
        return copied;
      }
      parts = parts.subspan(batch.size());
    }
    return {};
  }

 private:
  checkpoint::FileSystem& fs_;
  const std::string& root_;
  const CheckpointRecord& record_;
  const checkpoint::ReadOptions& options_;
  std::int64_t* bytes_;
};

Status Load(StateTable& table, const Restore& restore, checkpoint::FileSystem& fs,
            const std::string& root, bool first_rank, std::int64_t* bytes, bool* contradicts,
            bool* device_failed) {
  Result<checkpoint::Manifest> manifest =
      checkpoint::ReadManifest(fs, root, restore.directory, restore.manifest_digest);
  if (!manifest.ok()) return manifest.status();
  if (manifest->record.key != restore.checkpoint) {
    return DataLoss(fmt::format("{}/{} is not the checkpoint of step {}", root, restore.directory,
                                restore.checkpoint.step.value()));
  }
  checkpoint::IoPool pool;
  checkpoint::ReadOptions options;
  options.pool = &pool;
  const checkpoint::TensorMatch match =
      checkpoint::MatchTensors(manifest->record.tensors, table.Specs());
  Status same = checkpoint::CheckStrictMatch(match);
  // One that looks is enough: it tells the others.
  if (same.ok() && first_rank) {
    same = checkpoint::CheckTies(fs, root, manifest->record, match.tied_now, options);
  }
  if (same.code() == Code::kFailedPrecondition) {
    *contradicts = true;
    return InvalidArgument(fmt::format(
        "{}/{} is a checkpoint of another model: {}. Start the job with the model that wrote it, "
        "or under another name with another checkpoint directory",
        root, restore.directory, same.message()));
  }
  MUSTER_RETURN_IF_ERROR(same);
  const Wanted wanted = WantedOf(table, match.pairs);
  Loader loader(fs, root, manifest->record, options, bytes);
  MUSTER_RETURN_IF_ERROR(loader.Load(wanted.host));
  if (wanted.device.empty()) return {};
  return loader.LoadToDevice(*table.device(), wanted.device, device_failed);
}

}  // namespace

LoadOutcome LoadState(StateTable& table, const Restore& restore, checkpoint::FileSystem& fs,
                      const std::string& root, bool first_rank, std::int64_t* bytes) {
  LoadOutcome outcome;
  bool device_failed = false;
  outcome.status =
      Load(table, restore, fs, root, first_rank, bytes, &outcome.contradicts, &device_failed);
  const Code code = outcome.status.code();
  outcome.reading = !outcome.status.ok() && !device_failed;
  outcome.bad_checkpoint = outcome.reading && (code == Code::kDataLoss || code == Code::kNotFound);
  return outcome;
}

}  // namespace muster::worker
