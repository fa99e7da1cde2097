#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include "checkpoint/digest.h"
#include "checkpoint/format.h"
#include "protocol/codec.h"

namespace muster::checkpoint {
namespace {

// The frame is fixed to the byte, so that the digest can cover everything before itself. The
// checkpoint is an index entry as the codec writes it: complete, not announced.
constexpr std::string_view kVersionMark = R"({"muster_manifest":)";
constexpr std::string_view kCheckpointMark = R"(,"checkpoint":)";
constexpr std::string_view kDigestMark = R"(,"digest":")";
constexpr std::size_t kDigestDigits = 16;
constexpr std::string_view kEnd = "\"}\n";
constexpr std::size_t kTailBytes = kDigestDigits + kEnd.size();

// What comes before the checkpoint.
std::string Head() { return fmt::format("{}{}{}", kVersionMark, kFormatVersion, kCheckpointMark); }

}  // namespace

Result<std::string> EncodeManifest(const CheckpointRecord& record) {
  MUSTER_RETURN_IF_ERROR(CheckRecord(record));
  CheckpointEntry entry;
  entry.record = record;
  std::string text = Head();
  text += EncodeCheckpointEntry(entry);
  text += kDigestMark;
  const std::string digest = ToHex(DigestOf(text));
  text += digest;
  text += kEnd;
  return text;
}

Result<Manifest> DecodeManifest(std::string_view text) {
  if (text.size() < kTailBytes || !text.ends_with(kEnd)) return DataLoss("it is cut short");
  const std::string_view covered = text.substr(0, text.size() - kTailBytes);
  Manifest manifest;
  manifest.digest = DigestOf(covered);
  if (ToHex(manifest.digest) != text.substr(covered.size(), kDigestDigits)) {
    return DataLoss("its bytes do not have the digest that it ends with");
  }
  const std::string head = Head();
  if (!covered.starts_with(head) || !covered.ends_with(kDigestMark)) {
    return FailedPrecondition(
        fmt::format("it is not of format {}: use the build that wrote it, or "
                    "a newer one",
                    kFormatVersion));
  }
  const Result<CheckpointEntry> entry = DecodeCheckpointEntry(
      covered.substr(head.size(), covered.size() - head.size() - kDigestMark.size()));
  if (!entry.ok()) return DataLoss(entry.status().message());
  if (const Status status = CheckRecord(entry->record); !status.ok()) {
    return DataLoss(status.message());
  }
  manifest.record = entry->record;
  return manifest;
}

}  // namespace muster::checkpoint
