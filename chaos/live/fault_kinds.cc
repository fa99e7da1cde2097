#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "chaos/live/scenario.h"
#include "protocol/check.h"

namespace muster::chaos {
namespace {

enum class Needs { kNothing, kNetwork, kMounts };

struct KindInfo {
  FaultKind kind;
  std::string_view name;
  std::string_view description;
  Needs needs;
};

constexpr std::array kKinds = {
    KindInfo{FaultKind::kKill, "kill", "a worker is killed (SIGKILL)", Needs::kNothing},
    KindInfo{FaultKind::kLoseNode, "lose-node", "a launcher and all its workers are killed at once",
             Needs::kNothing},
    KindInfo{FaultKind::kKillLauncher, "kill-launcher", "a launcher alone is killed",
             Needs::kNothing},
    KindInfo{FaultKind::kPause, "pause", "a worker is stopped (SIGSTOP) and wakes later",
             Needs::kNothing},
    KindInfo{FaultKind::kStop, "stop", "a worker is asked to leave (SIGTERM)", Needs::kNothing},
    KindInfo{FaultKind::kStopNode, "stop-node", "a launcher is asked to leave (SIGTERM)",
             Needs::kNothing},
    KindInfo{FaultKind::kDrain, "drain", "an operator drains a node", Needs::kNothing},
    KindInfo{FaultKind::kNotice, "notice", "a node is told that it will be lost, and is lost",
             Needs::kNothing},
    KindInfo{FaultKind::kWithdrawnNotice, "withdrawn-notice",
             "a node is told that it will be lost, and is not", Needs::kNothing},
    KindInfo{FaultKind::kKillCoordinator, "kill-coordinator",
             "musterd is killed and comes back with its store", Needs::kNothing},
    KindInfo{FaultKind::kPauseCoordinator, "pause-coordinator",
             "musterd is stopped (SIGSTOP) and wakes later", Needs::kNothing},
    KindInfo{FaultKind::kLoseStore, "lose-store", "musterd is killed and comes back with no store",
             Needs::kNothing},
    KindInfo{FaultKind::kCut, "cut", "packets between two parties are dropped", Needs::kNetwork},
    KindInfo{FaultKind::kReset, "reset", "the connections between two parties are broken",
             Needs::kNetwork},
    KindInfo{FaultKind::kLinkDown, "link-down", "a node's link goes down", Needs::kNetwork},
    KindInfo{FaultKind::kSlow, "slow", "a node's link is slow", Needs::kNetwork},
    KindInfo{FaultKind::kLossy, "lossy", "a node's link loses packets", Needs::kNetwork},
    KindInfo{FaultKind::kDelay, "delay", "what a node sends arrives late", Needs::kNetwork},
    KindInfo{FaultKind::kFillCheckpointDisk, "fill-checkpoint-disk",
             "the disk of the checkpoints is full", Needs::kMounts},
    KindInfo{FaultKind::kFillIndexDisk, "fill-index-disk", "the disk of musterd's store is full",
             Needs::kMounts},
    KindInfo{FaultKind::kFlipBit, "flip-bit", "a bit of the newest checkpoint is flipped",
             Needs::kNothing},
    KindInfo{FaultKind::kTruncate, "truncate", "a file of the newest checkpoint is cut short",
             Needs::kNothing},
    KindInfo{FaultKind::kStarve, "starve", "busy loops take the processors", Needs::kNothing},
};

const KindInfo& InfoOf(FaultKind kind) {
  const auto* found = std::find_if(kKinds.begin(), kKinds.end(),
                                   [&](const auto& info) { return info.kind == kind; });
  MUSTER_CHECK(found != kKinds.end(), "a kind of fault without a name");
  return *found;
}

}  // namespace

std::string_view NameOf(FaultKind kind) { return InfoOf(kind).name; }

std::string_view DescriptionOf(FaultKind kind) { return InfoOf(kind).description; }

std::optional<FaultKind> FaultKindNamed(std::string_view name) {
  const auto* found = std::find_if(kKinds.begin(), kKinds.end(),
                                   [&](const auto& info) { return info.name == name; });
  if (found == kKinds.end()) return std::nullopt;
  return found->kind;
}

const std::vector<FaultKind>& AllFaultKinds() {
  static const std::vector<FaultKind> all = [] {
    std::vector<FaultKind> kinds;
    for (const KindInfo& info : kKinds) kinds.push_back(info.kind);
    return kinds;
  }();
  return all;
}

std::string WhyNot(FaultKind kind, const Powers& powers) {
  const Needs needs = InfoOf(kind).needs;
  if (needs == Needs::kNetwork && !powers.network) {
    return "it needs network namespaces, which cannot be made here";
  }
  if (needs == Needs::kMounts && !powers.mounts) {
    return "it needs a disk of a given size, which cannot be mounted here";
  }
  return {};
}

}  // namespace muster::chaos
