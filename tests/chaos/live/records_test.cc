#include "chaos/live/records.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace muster::chaos {
namespace {

std::string Line(std::int64_t step) {
  return R"({"t_ns":5,"pid":7,"worker":"w","incarnation":"00000000000000a1",)"
         R"("generation":2,"step":)" +
         std::to_string(step) +
         R"(,"rank":1,"world_size":3,"epoch":4,"samples":[[0,3],[9,12]],"outcome":"apply",)" +
         R"("loss":0.5,"digest":"0f"})";
}

class RecordsTest : public testing::Test {
 protected:
  RecordsTest() {
    std::string path = testing::TempDir() + "records-XXXXXX";
    directory_ = mkdtemp(path.data());
  }
  ~RecordsTest() override { std::filesystem::remove_all(directory_); }
  void Append(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ + "/" + name, std::ios::app) << text;
  }
  std::string directory_;
};

TEST_F(RecordsTest, ParsesEveryField) {
  const Result<StepRecord> record = ParseRecord(Line(6));
  ASSERT_TRUE(record.ok()) << record.status().ToString();
  EXPECT_EQ(record->t_ns, 5);
  EXPECT_EQ(record->pid, 7);
  EXPECT_EQ(record->worker, "w");
  EXPECT_EQ(record->incarnation, "00000000000000a1");
  EXPECT_EQ(record->generation, 2);
  EXPECT_EQ(record->step, 6);
  EXPECT_EQ(record->rank, 1);
  EXPECT_EQ(record->world_size, 3);
  EXPECT_EQ(record->epoch, 4);
  EXPECT_EQ(record->samples, (std::vector<SampleRange>{{0, 3}, {9, 12}}));
  EXPECT_EQ(record->outcome, "apply");
  EXPECT_EQ(record->loss, 0.5);
  EXPECT_EQ(record->digest, "0f");
}

TEST_F(RecordsTest, ParsesTheFinalState) {
  const Result<StepRecord> record = ParseRecord(
      R"({"t_ns":5,"pid":7,"worker":"w","incarnation":"00000000000000a1","final":true,"step":9,)"
      R"("digest":"ff"})");
  ASSERT_TRUE(record.ok()) << record.status().ToString();
  EXPECT_TRUE(record->final);
  EXPECT_EQ(record->step, 9);
  EXPECT_EQ(record->digest, "ff");
}

TEST_F(RecordsTest, RefusesWhatIsNoRecord) {
  for (const char* text : {"", "{}", "[1]", "{\"t_ns\":", "null"}) {
    EXPECT_EQ(ParseRecord(text).status().code(), Code::kDataLoss) << text;
  }
  std::string impossible = Line(6);
  impossible.replace(impossible.find("\"rank\":1"), 8, "\"rank\":3");
  EXPECT_EQ(ParseRecord(impossible).status().code(), Code::kDataLoss);
}

TEST_F(RecordsTest, FollowsFilesAsTheyGrow) {
  RecordFollower follower(directory_);
  EXPECT_TRUE(follower.Poll()->empty());
  Append("a.jsonl", Line(1) + "\n" + Line(2).substr(0, 40));
  ASSERT_EQ(follower.Poll()->size(), 1U);
  EXPECT_EQ(follower.last_step(), 1);
  Append("a.jsonl", Line(2).substr(40) + "\n");
  Append("b.jsonl", Line(3) + "\n");
  ASSERT_EQ(follower.Poll()->size(), 2U);
  EXPECT_EQ(follower.last_step(), 3);
  EXPECT_EQ(follower.all().size(), 3U);
}

TEST_F(RecordsTest, ALineCutOffByAKillDoesNotCount) {
  Append("a.jsonl", Line(1) + "\n" + Line(2).substr(0, 40));
  const Result<std::vector<StepRecord>> records = ReadRecords(directory_);
  ASSERT_TRUE(records.ok());
  EXPECT_EQ(records->size(), 1U);
}

TEST_F(RecordsTest, ADamagedLineIsAnErrorThatNamesTheFile) {
  Append("a.jsonl", "garbage\n");
  const Result<std::vector<StepRecord>> records = ReadRecords(directory_);
  ASSERT_FALSE(records.ok());
  EXPECT_NE(records.status().message().find("a.jsonl"), std::string::npos);
}

TEST_F(RecordsTest, AwaitChangeWakesOnAWrite) {
  RecordFollower follower(directory_);
  Append("a.jsonl", Line(1) + "\n");
  follower.AwaitChange(Duration::Seconds(60));  // returns at once: the change came before the call
  EXPECT_EQ(follower.Poll()->size(), 1U);
}

}  // namespace
}  // namespace muster::chaos
