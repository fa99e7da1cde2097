// What a person or a script sees of checkpoints on a disk. Pure.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/catalog.h"
#include "checkpoint/export.h"
#include "protocol/records.h"

namespace muster::cli {

// A checkpoint, and how old it is in milliseconds; negative when that is not known.
struct ListedCheckpoint {
  checkpoint::CatalogEntry entry;
  double age_ms = -1;
};

// "ok", "no manifest: …", "damaged: …", and whether it is pinned. What stands in the entry's status
// names files below `root`; that part of their paths is left out.
[[nodiscard]] std::string StateText(const std::string& root, const checkpoint::CatalogEntry& entry);

// A table of them, the newest last, and a line that sums them up. As JSON: an object with the root
// and a list.
[[nodiscard]] std::string RenderList(const std::string& root,
                                     const std::vector<ListedCheckpoint>& checkpoints);
[[nodiscard]] std::string RenderListJson(const std::string& root,
                                         const std::vector<ListedCheckpoint>& checkpoints);

// One checkpoint in one screen, and with `tensors` each of its tensors and files. As JSON: all of
// its record. REQUIRES: its manifest is ok.
[[nodiscard]] std::string RenderCheckpoint(const std::string& root,
                                           const ListedCheckpoint& checkpoint, bool tensors);
[[nodiscard]] std::string RenderCheckpointJson(const std::string& root,
                                               const ListedCheckpoint& checkpoint);

// What an export has written to `target`, and what a reader of it has to know.
[[nodiscard]] std::string RenderExport(const std::string& target, const CheckpointRecord& record,
                                       const checkpoint::ExportPlan& plan);

}  // namespace muster::cli
