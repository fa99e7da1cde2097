#include "coordinator/core/quorum.h"

#include <gtest/gtest.h>

namespace muster::coordinator {
namespace {

constexpr Instant At(std::int64_t ms) { return Instant::FromNanos(ms * 1'000'000); }

// One member a word: a name, a letter for its standing (A answered, P pending, U unseen, S suspect,
// D dead), and then "-" for no survivor, "x" for not able, "l" for leaving.
std::vector<QuorumMember> Parse(const std::string& text) {
  std::vector<QuorumMember> members;
  std::string word;
  for (const char c : text + " ") {
    if (c != ' ') {
      word += c;
      continue;
    }
    QuorumMember member;
    member.member.worker = WorkerId(word.substr(0, 1));
    member.standing = word[1] == 'A'   ? Standing::kAnswered
                      : word[1] == 'P' ? Standing::kPending
                      : word[1] == 'U' ? Standing::kUnseen
                      : word[1] == 'S' ? Standing::kSuspect
                                       : Standing::kDead;
    member.survivor = word.find('-') == std::string::npos;
    member.able = word.find('x') == std::string::npos;
    member.leaving = word.find('l') != std::string::npos;
    members.push_back(member);
    word.clear();
  }
  return members;
}

std::string Names(const Wait& wait) {
  std::string names;
  for (const QuorumMember& member : wait.whom) names += member.member.worker.value();
  return names;
}

struct AnswersRow {
  const char* name;
  const char* members;
  std::int64_t now_ms;  // settled at 100
  std::optional<WaitReason> reason;
  const char* whom;
};

TEST(AwaitAnswers, Rows) {
  for (const AnswersRow& row : {
           AnswersRow{"all answered", "aA bA", 100, {}, ""},
           AnswersRow{"one is late", "aA bP", 100, WaitReason::kAnswers, "b"},
           AnswersRow{"a joiner is late", "aA bA cP-", 100, WaitReason::kAnswers, "c"},
           AnswersRow{"one may come back", "aA bA cU", 100, WaitReason::kReturn, "c"},
           AnswersRow{"a joiner that went is not waited for", "aA bA cU-", 100, {}, ""},
           AnswersRow{"suspects are not waited for here", "aA bA cS", 100, {}, ""},
           AnswersRow{"the dead neither", "aA bA cD", 100, {}, ""},
           AnswersRow{"more may belong to it", "aA bA cS", 99, WaitReason::kSettle, ""},
           AnswersRow{"too few, the lost are named", "aA bS cD", 100, WaitReason::kMinWorkers,
                      "bc"},
           AnswersRow{"one that is not able does not count", "aA bAx", 100, WaitReason::kMinWorkers,
                      ""},
           AnswersRow{"one that leaves does not count", "aA bAl", 100, WaitReason::kMinWorkers, ""},
           AnswersRow{"a joiner counts", "aA bAx cA-", 100, {}, ""},
       }) {
    const auto members = Parse(row.members);
    const auto wait = AwaitAnswers({At(row.now_ms), At(100), 2, &members});
    ASSERT_EQ(wait.has_value(), row.reason.has_value()) << row.name;
    if (!wait) continue;
    EXPECT_EQ(wait->reason, *row.reason) << row.name;
    EXPECT_EQ(Names(*wait), row.whom) << row.name;
    if (wait->reason == WaitReason::kSettle) {
      EXPECT_EQ(wait->until, At(100));
    }
    if (wait->reason == WaitReason::kMinWorkers) {
      EXPECT_EQ(wait->have, 1) << row.name;
    }
    EXPECT_NE(ToText(*wait, At(row.now_ms)), "") << row.name;
  }
}

struct HoldersRow {
  const char* name;
  const char* catches;  // the wrong rule under which this row fails
  const char* members;
  bool holder_answers;
  bool rollback;
  bool save_pending;
  std::int64_t now_ms;  // save until 2000, patience until 1000, autonomy until 9000
  std::optional<WaitReason> reason;
};

TEST(AwaitHolders, Rows) {
  for (const HoldersRow& row : {
           HoldersRow{
               "live state at hand", "waits without need", "aA bS", true, false, false, 0, {}},
           HoldersRow{"all silent", "gives up live state while a holder is unseen", "aS bS", false,
                      true, false, 8999, WaitReason::kAutonomy},
           HoldersRow{"all silent, nothing known to be lost", "asks only when steps are lost",
                      "aS bS", false, false, false, 8999, WaitReason::kAutonomy},
           HoldersRow{"one dead, one silent", "one death is enough to give up the other's state",
                      "aD bS", false, true, false, 8999, WaitReason::kAutonomy},
           HoldersRow{"one answers but holds nothing", "any answer is enough", "aA bS", false, true,
                      false, 8999, WaitReason::kAutonomy},
           HoldersRow{"autonomy is over", "waits for ever", "aS bS", false, true, false, 9000, {}},
           HoldersRow{"all dead", "waits for the dead", "aD bD", false, true, false, 0, {}},
           HoldersRow{"all here, none holds",
                      "waits for those that answered",
                      "aA bA",
                      false,
                      true,
                      false,
                      0,
                      {}},
           HoldersRow{"a joiner is silent",
                      "a joiner is taken for a holder",
                      "aD bS-",
                      false,
                      true,
                      false,
                      0,
                      {}},
           HoldersRow{"a shard is silent", "evicts on the lease at the cost of steps", "aA bS",
                      true, true, false, 999, WaitReason::kPatience},
           HoldersRow{"patience is over", "waits for ever", "aA bS", true, true, false, 1000, {}},
           HoldersRow{
               "a shard is dead", "is patient with the dead", "aA bD", true, true, false, 0, {}},
           HoldersRow{"its save is about to be complete", "restores from an older one", "aA bD",
                      true, true, true, 1999, WaitReason::kSave},
           HoldersRow{
               "the save takes too long", "waits for ever", "aA bD", true, true, true, 2000, {}},
       }) {
    const auto members = Parse(row.members);
    HoldersView view;
    view.now = At(row.now_ms);
    view.holder_answers = row.holder_answers;
    view.rollback = row.rollback;
    view.save_pending = row.save_pending;
    view.save_until = At(2000);
    view.patience_until = At(1000);
    view.autonomy_until = At(9000);
    view.members = &members;
    const auto wait = AwaitHolders(view);
    ASSERT_EQ(wait.has_value(), row.reason.has_value())
        << row.name << " (catches: " << row.catches << ")";
    if (!wait) continue;
    EXPECT_EQ(wait->reason, *row.reason) << row.name << " (catches: " << row.catches << ")";
    EXPECT_GT(wait->until, view.now) << row.name;
    EXPECT_NE(ToText(*wait, view.now), "") << row.name;
  }
}

TEST(AwaitHolders, TheFirstGenerationHasNone) {
  const auto members = Parse("aS- bA-");
  HoldersView view;
  view.first = true;
  view.autonomy_until = At(9000);
  view.members = &members;
  EXPECT_FALSE(AwaitHolders(view).has_value());
}

}  // namespace
}  // namespace muster::coordinator
