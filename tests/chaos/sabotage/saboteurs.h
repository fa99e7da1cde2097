// Programs that break a promise on purpose, each in one way: the lab has to convict them, by the
// right check.
#pragma once

#include <string_view>

namespace muster::chaos {

enum class Culprit { kWorker, kCoordinator };

struct Saboteur {
  std::string_view name;  // the value of MUSTER_SABOTAGE
  Culprit culprit;
  std::string_view what;      // it does
  std::string_view scenario;  // under which it has to be convicted
  std::string_view check;     // that has to be broken
};

inline constexpr Saboteur kSaboteurs[] = {
    {"apply-twice", Culprit::kWorker, "applies one step twice on one worker", "kill-b",
     "same_result"},
    {"skip-sample", Culprit::kWorker, "leaves a sample out of a gradient", "kill-b", "same_result"},
    {"sample-twice", Culprit::kWorker, "records that it took a sample which another took", "kill-b",
     "samples_exact"},
    {"commit-alone", Culprit::kWorker, "records a step that no one else committed", "kill-b",
     "chain"},
    {"commit-twice", Culprit::kWorker, "records a step again that it has committed", "kill-b",
     "chain"},
    {"two-outcomes", Culprit::kWorker, "records another outcome than the others", "kill-b",
     "same_outcome"},
    {"dead-answers", Culprit::kWorker,
     "goes on committing as an incarnation that was declared dead", "pause-a", "one_generation"},
    {"leak-descriptor", Culprit::kWorker, "leaks a descriptor at each re-form", "many-kills",
     "no_leaks"},
    {"leak-thread", Culprit::kWorker, "leaks a thread at each re-form", "many-kills", "no_leaks"},
    {"leak-memory", Culprit::kWorker, "leaks memory at each re-form", "many-kills", "no_leaks"},
    {"restart-itself", Culprit::kWorker, "ends at a re-form instead of going on in its process",
     "kill-b", "survivors"},
    {"leave-orphan", Culprit::kWorker, "leaves a process behind", "kill-b", "no_orphans"},
    {"damage-checkpoint", Culprit::kWorker, "changes a checkpoint that counts", "kill-b",
     "checkpoints_load"},
    {"dawdle", Culprit::kWorker, "takes its time before the first step after a re-form", "kill-b",
     "resumes"},
    {"ignore-sigterm", Culprit::kWorker, "does not leave when it is asked to", "quick-stop",
     "ended"},
    {"evict-node-mate", Culprit::kCoordinator,
     "takes the death of a worker for that of all workers of its node", "kill-one-of-two",
     "bounds"},
    {"low-number", Culprit::kCoordinator, "numbers generations afresh after it has lost its store",
     "lose-store-then-kill", "ended"},
    {"flood-log", Culprit::kCoordinator, "says the same thing again and again", "kill-b",
     "quiet_logs"},
};

}  // namespace muster::chaos
