// Which layouts (lists of tensors) the journal holds, and how many of its records refer to each: a
// list is stored once, however many records have it. Internal to this folder.
//
// Used by one thread at a time. A copy serves as a plan: what there will be once a batch is
// durable.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/store/database.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::store {

// The digest of the list as text, and so the name under which it is stored.
using LayoutId = std::uint64_t;

class Layouts {
 public:
  // A record that is stored refers to this layout.
  void Count(LayoutId id) { ++references_[id]; }

  // One record more refers to this list. kInvalidArgument, which names the field, for a list that
  // could not be read back.
  [[nodiscard]] Result<LayoutId> Refer(const std::vector<TensorSpec>& tensors);
  // One record less does. REQUIRES: a record of before, or of a call of Refer, refers to it.
  void Release(LayoutId id);

  // Appends what has to be written for the calls so far: lists that are new, and the removal of
  // those that nothing refers to any more. Call it once, when all has been planned.
  void AppendChanges(std::vector<KeyChange>* changes);

  // The write of `plan` failed, and what it removed may be gone all the same: those are written
  // again before anything new refers to them.
  void Doubt(const Layouts& plan);

  // The list, from the database. kDataLoss, which names the layout, when it is missing or damaged.
  [[nodiscard]] static Result<std::vector<TensorSpec>> Read(const Database& database, LayoutId id);

 private:
  std::map<LayoutId, std::int64_t> references_;
  std::set<LayoutId> doubtful_;  // perhaps not stored, though something refers to them
  // Touched by the plan: with the text when it has to be written.
  std::map<LayoutId, std::optional<std::string>> touched_;
  std::vector<LayoutId> removed_;  // by the plan
};

}  // namespace muster::store
