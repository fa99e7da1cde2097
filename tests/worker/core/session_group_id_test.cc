// The id by which the members of a generation find each other over NCCL: minted by rank 0, handed
// on by the coordinator, and good for one generation.
#include <gtest/gtest.h>

#include "tests/worker/core/session_harness.h"

namespace muster::worker {
namespace {

JobSpec NcclSpec() {
  JobSpec spec = SpecOf();
  spec.backend = Backend::kNccl;
  return spec;
}

class SessionGroupId : public testing::Test {
 protected:
  // Interrupted for a generation of two and assigned to it.
  void Assign(std::int64_t generation, std::int32_t rank, std::int32_t size = 2) {
    h_.SayInterrupt(generation);
    h_.FinishAbort();
    h_.Say(muster::Assign{
        h_.RecordOf(generation, rank, size, 0,
                    generation == 1 ? RestoreSource::kInitial : RestoreSource::kLive)});
    ASSERT_NE(h_.session().assigned(), nullptr);
    h_.Forget();
    (void)h_.TakeWake();
  }
  void Reconnect() {
    h_.Cut();
    h_.Run(Duration::Millis(1));
    h_.Accept();
    h_.Forget();
    h_.Greet();
  }
  void Say(std::int64_t generation, const char* id) { h_.Say(GroupId{Generation(generation), id}); }
  [[nodiscard]] std::string id() const {
    const std::string* id = h_.session().group_id();
    return id == nullptr ? "" : *id;
  }

  SessionHarness h_{NcclSpec()};
};

TEST_F(SessionGroupId, RankZeroMintsOneAndHasItAtOnce) {
  h_.Join();
  EXPECT_FALSE(h_.session().mints_group_id());
  Assign(1, 0);
  EXPECT_TRUE(h_.session().mints_group_id());
  EXPECT_EQ(h_.session().group_id(), nullptr);
  h_.Hand(IdMinted{Generation(1), "one"});
  EXPECT_EQ(id(), "one");
  EXPECT_FALSE(h_.session().mints_group_id());
  const auto sent = h_.TakeAll<GroupId>();
  ASSERT_EQ(sent.size(), 1U);
  EXPECT_EQ(sent[0], (GroupId{Generation(1), "one"}));
  h_.Hand(IdMinted{Generation(1), "two"});  // the first stands
  Say(1, "three");
  EXPECT_EQ(id(), "one");
  EXPECT_FALSE(h_.Take<GroupId>());
}

TEST_F(SessionGroupId, NobodyMintsAloneOrOverTcp) {
  h_.Join();
  Assign(1, 0, 1);
  EXPECT_FALSE(h_.session().mints_group_id());
  SessionHarness tcp;
  tcp.Join();
  tcp.SayInterrupt(1);
  tcp.FinishAbort();
  tcp.Say(muster::Assign{tcp.RecordOf(1, 0, 2, 0, RestoreSource::kInitial)});
  ASSERT_NE(tcp.session().assigned(), nullptr);
  EXPECT_FALSE(tcp.session().mints_group_id());
}

TEST_F(SessionGroupId, OthersWaitForItAndAreWoken) {
  h_.Join();
  Assign(1, 1);
  EXPECT_FALSE(h_.session().mints_group_id());
  EXPECT_EQ(h_.session().group_id(), nullptr);
  Say(1, "one");
  EXPECT_TRUE(h_.TakeWake());
  EXPECT_EQ(id(), "one");
  Say(1, "one");  // told again after a reconnection
  Say(1, "two");
  EXPECT_FALSE(h_.TakeWake());
  EXPECT_EQ(id(), "one");
}

TEST_F(SessionGroupId, OneOfAnotherGenerationIsIgnored) {
  h_.Join();
  Say(1, "before there is any");
  Assign(2, 1);
  EXPECT_EQ(h_.session().group_id(), nullptr);
  Say(1, "old");
  Say(3, "not heard of yet");
  EXPECT_EQ(h_.session().group_id(), nullptr);
  EXPECT_FALSE(h_.TakeWake());
}

TEST_F(SessionGroupId, AnInterruptEndsIt) {
  h_.Join();
  Assign(1, 1);
  Say(1, "one");
  h_.SayInterrupt(2);
  EXPECT_EQ(h_.session().group_id(), nullptr);
  h_.FinishAbort();
  Say(1, "one");
  Say(2, "too early: nothing is assigned yet");
  EXPECT_EQ(h_.session().group_id(), nullptr);
  h_.Say(muster::Assign{h_.RecordOf(2, 0, 2, 0, RestoreSource::kInitial)});
  EXPECT_EQ(h_.session().group_id(), nullptr);
  EXPECT_TRUE(h_.session().mints_group_id());  // it is rank 0 now
}

TEST_F(SessionGroupId, AnIdMintedForAGenerationThatWasGivenUpIsDropped) {
  h_.Join();
  Assign(1, 0);
  h_.SayInterrupt(2);
  h_.Hand(IdMinted{Generation(1), "one"});
  h_.FinishAbort();
  h_.Say(muster::Assign{h_.RecordOf(2, 1, 2, 0, RestoreSource::kInitial)});
  h_.Hand(IdMinted{Generation(1), "one"});
  EXPECT_EQ(h_.session().group_id(), nullptr);
  EXPECT_FALSE(h_.Take<GroupId>());
}

// What was sent on the connection that broke may not have arrived.
TEST_F(SessionGroupId, RankZeroSaysItAgainOnEachNewConnectionUntilTheStart) {
  h_.Join();
  Assign(1, 0);
  Reconnect();
  EXPECT_FALSE(h_.Take<GroupId>());
  h_.Hand(IdMinted{Generation(1), "one"});
  Reconnect();
  EXPECT_EQ(h_.TakeAll<GroupId>().size(), 1U);
  EXPECT_EQ(id(), "one");
  h_.FormAssigned(Generation(1));
  EXPECT_EQ(h_.session().group_id(), nullptr);
  Reconnect();
  EXPECT_FALSE(h_.Take<GroupId>());
}

TEST_F(SessionGroupId, AnIdMintedWithoutAConnectionIsSentWhenThereIsOne) {
  h_.Join();
  Assign(1, 0);
  h_.Cut();
  h_.Hand(IdMinted{Generation(1), "one"});
  EXPECT_FALSE(h_.Take<GroupId>());
  EXPECT_EQ(id(), "one");
  h_.Run(Duration::Millis(1));
  h_.Accept();
  h_.Greet();
  EXPECT_EQ(h_.TakeAll<GroupId>().size(), 1U);
}

TEST_F(SessionGroupId, OthersDoNotSayIt) {
  h_.Join();
  Assign(1, 1);
  Say(1, "one");
  Reconnect();
  EXPECT_FALSE(h_.Take<GroupId>());
  EXPECT_EQ(id(), "one");
}

TEST_F(SessionGroupId, AFencedWorkerForgetsIt) {
  h_.Join();
  Assign(1, 1);
  Say(1, "one");
  h_.Say(Refused{Code::kFenced, "gone"});
  EXPECT_EQ(h_.session().group_id(), nullptr);
}

}  // namespace
}  // namespace muster::worker
