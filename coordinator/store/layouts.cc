#include "coordinator/store/layouts.h"

#include <fmt/format.h>

#include <utility>

#include "checkpoint/digest.h"
#include "coordinator/store/data_directory.h"
#include "protocol/check.h"
#include "protocol/codec.h"
#include "protocol/ids.h"

namespace muster::store {
namespace {

std::string KeyOf(LayoutId id) { return "layout/" + ToHex(id); }

}  // namespace

Result<LayoutId> Layouts::Refer(const std::vector<TensorSpec>& tensors) {
  std::string text = EncodeTensors(tensors);
  const LayoutId id = checkpoint::DigestOf(text);
  std::int64_t& references = references_[id];
  if (references == 0 || doubtful_.contains(id)) {
    const Result<std::vector<TensorSpec>> back = DecodeTensors(text);
    if (!back.ok()) return back.status();
    touched_[id] = std::move(text);
  }
  ++references;
  return id;
}

void Layouts::Release(LayoutId id) {
  const auto it = references_.find(id);
  MUSTER_CHECK(it != references_.end() && it->second > 0, "a layout is released that has no user");
  if (--it->second == 0) touched_.try_emplace(id);
}

void Layouts::AppendChanges(std::vector<KeyChange>* changes) {
  removed_.clear();
  for (auto& [id, text] : touched_) {
    if (references_.at(id) == 0) {
      references_.erase(id);
      removed_.push_back(id);
      changes->push_back({Family::kMeta, KeyOf(id), std::nullopt});
    } else if (text.has_value()) {
      changes->push_back({Family::kMeta, KeyOf(id), std::move(text)});
    }
    doubtful_.erase(id);
  }
  touched_.clear();
}

void Layouts::Doubt(const Layouts& plan) {
  doubtful_.insert(plan.removed_.begin(), plan.removed_.end());
}

Result<std::vector<TensorSpec>> Layouts::Read(const Database& database, LayoutId id) {
  const Result<std::optional<std::string>> text = database.Get(Family::kMeta, KeyOf(id));
  if (!text.ok()) return text.status();
  if (!text->has_value()) {
    return Damaged(database.directory(), fmt::format("layout {} is missing", ToHex(id)));
  }
  if (checkpoint::DigestOf(**text) != id) {
    return Damaged(database.directory(), fmt::format("layout {} has digest {}", ToHex(id),
                                                     ToHex(checkpoint::DigestOf(**text))));
  }
  Result<std::vector<TensorSpec>> tensors = DecodeTensors(**text);
  if (tensors.ok()) return tensors;
  return Damaged(database.directory(),
                 fmt::format("layout {}: {}", ToHex(id), tensors.status().message()));
}

}  // namespace muster::store
