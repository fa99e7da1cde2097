// Whether a round may decide, and for whom it waits if not. Pure: the same view gives the same
// answer, with its reason.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/ids.h"
#include "protocol/time.h"

namespace muster::coordinator {

enum class Standing {
  kAnswered,  // sent Ready for this round
  kPending,   // connected and alive, has not answered yet
  kUnseen,    // not connected, not yet suspected
  kSuspect,   // its lease or grace ran out, or it is being evicted
  kDead,      // conclusively: a launcher saw it end, it left, or its process took a new incarnation
};

struct QuorumMember {
  Member member;
  bool survivor = false;  // of the last started generation
  bool able = false;      // may become a member
  bool leaving = false;
  Standing standing = Standing::kUnseen;
  Duration silent;  // since it was last heard
};

enum class WaitReason {
  kSettle,      // other failures may belong to the same event
  kAnswers,     // interrupted, abort not yet answered
  kReturn,      // a member of the broken generation may still reconnect
  kMinWorkers,  // too few alive
  kPatience,    // evicting the silent would force a rollback; it may come back
  kAutonomy,    // no holder of the last generation is in sight; it may still be training
  kSave,        // a checkpoint of the very step is about to be complete
};

struct Wait {
  WaitReason reason = WaitReason::kSettle;
  std::vector<QuorumMember> whom;
  Instant until = Instant::Never();  // when the wait ends by itself
  std::int32_t have = 0;             // kMinWorkers
  std::int32_t need = 0;
};

struct AnswersView {
  Instant now;
  Instant settle_until;  // in the past when the evidence is conclusive
  std::int32_t min_workers = 1;
  const std::vector<QuorumMember>* members = nullptr;
};
// How many that can be members have to answer.
[[nodiscard]] std::int32_t LeastUsable(std::int32_t min_workers);
// Nothing when every live worker has answered and enough are there.
[[nodiscard]] std::optional<Wait> AwaitAnswers(const AnswersView& view);

struct HoldersView {
  Instant now;
  bool first = false;           // there is no generation to be careful with
  bool holder_answers = false;  // a survivor that holds the state of that generation is here
  bool rollback = false;        // what could be decided now would void committed steps
  bool save_pending = false;    // a checkpoint of the committed step will be complete soon
  Instant save_until;
  Instant patience_until;  // for silent holders, when a rollback is at stake
  Instant autonomy_until;  // for silent survivors when no holder is in sight
  const std::vector<QuorumMember>* members = nullptr;
};
// Nothing when deciding now gives up nothing that an unseen worker may still hold.
[[nodiscard]] std::optional<Wait> AwaitHolders(const HoldersView& view);

// One line: "waiting for 1 of 3 to answer: worker b4 last heard 1.2 s ago".
[[nodiscard]] std::string ToText(const Wait& wait, Instant now);

}  // namespace muster::coordinator
