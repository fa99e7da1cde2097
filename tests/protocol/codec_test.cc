// What is encoded is decoded to the same value; names are stable.
#include "protocol/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "protocol/codec_json.h"
#include "tests/protocol/message_samples.h"

namespace muster {
namespace {

using nlohmann::json;

TEST(Codec, EveryMessageComesBackEqual) {
  const std::vector<Message> samples = SampleMessages();
  ASSERT_EQ(samples.size(), std::variant_size_v<Message>);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    ASSERT_EQ(samples[i].index(), i) << "the samples are in the order of the alternatives";
    const std::string text = Encode(samples[i]);
    const Result<Message> back = Decode(text);
    ASSERT_TRUE(back.ok()) << text << "\n" << back.status().ToString();
    EXPECT_TRUE(*back == samples[i]) << text;
    EXPECT_EQ(Encode(*back), text);
  }
}

TEST(Codec, AbsentOptionalsStayAbsent) {
  Ready ready = std::get<Ready>(SampleMessages()[3]);
  ready.open.reset();
  EXPECT_FALSE(json::parse(Encode(ready)).contains("open"));
  const Result<Message> back = Decode(Encode(ready));
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(*back == Message(ready));

  JobRecord record = SampleJobRecord();
  record.latest.reset();
  record.started.reset();
  record.end.reset();
  const Result<JobRecord> record_back = DecodeJobRecord(EncodeJobRecord(record));
  ASSERT_TRUE(record_back.ok()) << record_back.status().ToString();
  EXPECT_TRUE(*record_back == record);
}

TEST(Codec, RecordsComeBackEqual) {
  const JobRecord job = SampleJobRecord();
  const Result<JobRecord> job_back = DecodeJobRecord(EncodeJobRecord(job));
  ASSERT_TRUE(job_back.ok()) << job_back.status().ToString();
  EXPECT_TRUE(*job_back == job);

  const CheckpointEntry entry = SampleCheckpointEntry();
  const Result<CheckpointEntry> entry_back = DecodeCheckpointEntry(EncodeCheckpointEntry(entry));
  ASSERT_TRUE(entry_back.ok()) << entry_back.status().ToString();
  EXPECT_TRUE(*entry_back == entry);
}

TEST(Codec, ListsComeBackEqual) {
  const CheckpointEntry entry = SampleCheckpointEntry();
  ASSERT_FALSE(entry.record.tensors.empty());
  ASSERT_FALSE(entry.record.files.empty());
  const auto tensors = DecodeTensors(EncodeTensors(entry.record.tensors));
  ASSERT_TRUE(tensors.ok()) << tensors.status().ToString();
  EXPECT_EQ(*tensors, entry.record.tensors);
  EXPECT_TRUE(DecodeTensors(EncodeTensors({}))->empty());
  const auto files = DecodeFiles(EncodeFiles(entry.record.files));
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  EXPECT_EQ(*files, entry.record.files);
  EXPECT_NE(DecodeFiles("{}").status().message().find("file_list.files"), std::string::npos);
  EXPECT_NE(DecodeTensors("[]").status().message().find("layout"), std::string::npos);
}

TEST(Codec, AnyBytesMakeAnIdOfAGroup) {
  GroupId group{Generation(3), ""};
  for (std::size_t i = 0; i < kMaxGroupIdBytes; ++i) group.id.push_back(static_cast<char>(i));
  const std::string text = Encode(group);
  EXPECT_NE(text.find("\"000102"), std::string::npos) << text;
  EXPECT_NE(text.find("fdfeff\""), std::string::npos) << text;
  const Result<Message> back = Decode(text);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_TRUE(*back == Message(group));
}

// As it was before there were several.
TEST(Codec, ASpecThatNamesNoBackendIsOfTcp) {
  json hello = json::parse(Encode(SampleMessages()[0]));
  ASSERT_EQ(hello["spec"]["backend"], "nccl");
  hello["spec"].erase("backend");
  const Result<Message> back = Decode(hello.dump());
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(std::get<Hello>(*back).spec.backend, Backend::kTcp);
}

TEST(Codec, TypeTagsAreStable) {
  std::string tags;
  for (const Message& message : SampleMessages()) {
    EXPECT_EQ(json::parse(Encode(message)).at("type"), NameOf(message));
    tags.append(NameOf(message)).append(" ");
  }
  EXPECT_EQ(tags,
            "hello able heartbeat ready formed form_failed operation_failed stopped leave finished "
            "shard_written shard_failed manifest_written checkpoint_removed launcher_hello attest "
            "welcome refused ack interrupt assign start wish write_manifest checkpoint_announced "
            "checkpoint_aborted remove_checkpoint sweep_checkpoints ended group_id ");
}

template <class E>
void ExpectNames(E last, std::size_t count) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(last); ++i) names.insert(NameOf(static_cast<E>(i)));
  EXPECT_EQ(names.size(), count);
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(Codec, EveryEnumeratorHasItsOwnName) {
  ExpectNames(Cause::kCoordinatorRestart, 10);
  ExpectNames(Outcome::kVoid, 4);
  ExpectNames(Stage::kForming, 7);
  ExpectNames(RestoreSource::kCheckpoint, 3);
  ExpectNames(CheckpointState::kDeleting, 4);
  ExpectNames(EndKind::kFailed, 2);
  ExpectNames(Backend::kNccl, 2);
  EXPECT_EQ(NameOf(Backend::kNccl), "nccl");
  EXPECT_EQ(NameOf(Cause::kLeaseExpired), "lease_expired");
  EXPECT_EQ(NameOf(Outcome::kApply), "apply");
  EXPECT_EQ(NameOf(RestoreSource::kLive), "live");
}

TEST(Codec, EveryEnumeratorIsDecoded) {
  for (int i = 0; i <= static_cast<int>(Code::kInternal); ++i) {
    const Message message = Refused{.code = static_cast<Code>(i), .reason = "r"};
    ASSERT_TRUE(Decode(Encode(message)).ok()) << Encode(message);
    EXPECT_TRUE(*Decode(Encode(message)) == message);
  }
  for (int i = 0; i <= static_cast<int>(Cause::kCoordinatorRestart); ++i) {
    const Message message =
        Interrupt{.generation = Generation(1), .cause = static_cast<Cause>(i), .reason = ""};
    ASSERT_TRUE(Decode(Encode(message)).ok()) << Encode(message);
    EXPECT_TRUE(*Decode(Encode(message)) == message);
  }
  for (int i = 0; i <= static_cast<int>(DType::kFloat64); ++i) {
    Hello hello = std::get<Hello>(SampleMessages()[0]);
    hello.spec.tensors[0].dtype = static_cast<DType>(i);
    ASSERT_TRUE(Decode(Encode(hello)).ok()) << Encode(hello);
    EXPECT_TRUE(*Decode(Encode(hello)) == Message(hello));
  }
}

TEST(Codec, LossMayBeAnyNumber) {
  Heartbeat heartbeat = std::get<Heartbeat>(SampleMessages()[2]);
  for (const double loss :
       {0.0, -0.0, 1e-320, 1.7976931348623157e308, -2.5, std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity()}) {
    heartbeat.loss = loss;
    const Result<Message> back = Decode(Encode(heartbeat));
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_EQ(std::get<Heartbeat>(*back).loss, loss);
    EXPECT_EQ(std::signbit(std::get<Heartbeat>(*back).loss), std::signbit(loss));
  }
  heartbeat.loss = std::numeric_limits<double>::quiet_NaN();
  const Result<Message> back = Decode(Encode(heartbeat));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_TRUE(std::isnan(std::get<Heartbeat>(*back).loss));
}

TEST(Codec, ProseIsCutAndCleanedWhenWritten) {
  // Two bytes a character, so that the bound falls between characters only by luck.
  std::string umlauts = "x";
  while (umlauts.size() < 3 * kMaxReasonBytes) umlauts += "ü";
  Result<Message> back = Decode(Encode(Leave{.reason = umlauts, .finish = false, .within = {}}));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(std::get<Leave>(*back).reason, umlauts.substr(0, kMaxReasonBytes - 1));

  const std::string invalid =
      "a\xff\xfe"
      "b\xc3"
      "\xed\xa0\x80"
      "c\xf4\x90\x80\x80";
  back = Decode(Encode(Leave{.reason = invalid, .finish = false, .within = {}}));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_TRUE(std::get<Leave>(*back).reason.starts_with("a\uFFFD\uFFFDb\uFFFD"));

  back = Decode(
      Encode(Leave{.reason = std::string("nul\0nul\x1b", 8), .finish = false, .within = {}}));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(std::get<Leave>(*back).reason, std::string("nul\0nul\x1b", 8));
}

TEST(Codec, InvalidUtf8NeverThrowsWhenWritten) {
  JobRecord record = SampleJobRecord();
  record.job = JobName("\xff\xfe");
  record.spec.checkpoint_directory = "/\xc3\x28";
  record.spec.tensors[0].name = "\xf0\x28\x8c\xbc";
  const Result<JobRecord> back = DecodeJobRecord(EncodeJobRecord(record));
  ASSERT_FALSE(back.ok()) << "such a job name is no name";
  EXPECT_NE(back.status().message().find("job_record.job"), std::string::npos);
}

TEST(Codec, EndlessDurationsSaturate) {
  Welcome welcome = std::get<Welcome>(SampleMessages()[16]);
  welcome.autonomy = Duration::Max();
  const Result<Message> back = Decode(Encode(welcome));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  const Duration read = std::get<Welcome>(*back).autonomy;
  EXPECT_GT(read, Duration::Seconds(std::int64_t{10} * 365 * 24 * 3600));
  EXPECT_GT(read * 4, read) << "leaves room for arithmetic";
}

TEST(Codec, UnknownFieldsAreIgnored) {
  json hello = json::parse(Encode(SampleMessages()[0]));
  hello["invented_later"] = {{"a", 1}};
  hello["spec"]["tensors"][0]["invented_later"] = nullptr;
  const Result<Message> back = Decode(hello.dump());
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_TRUE(*back == SampleMessages()[0]);
}

TEST(Codec, ALargeMembershipFitsIntoOneMessage) {
  GenerationRecord record = SampleGeneration();
  const MemberEntry member = record.members[0];
  record.members.clear();
  for (std::int32_t rank = 0; rank < kMaxWorldSize; ++rank) {
    record.members.push_back(member);
    record.members.back().rank = Rank(rank);
  }
  const Assign assign{std::move(record)};
  const std::string text = Encode(assign);
  EXPECT_LE(text.size(), kMaxMessageBytes);
  const Result<Message> back = Decode(text);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_TRUE(*back == Message(assign));
}

TEST(CutText, EndsBetweenCharacters) {
  EXPECT_EQ(codec::CutText("aü✓𝄞", 100), "aü✓𝄞");
  EXPECT_EQ(codec::CutText("aü✓𝄞", 2), "a");
  EXPECT_EQ(codec::CutText("aü✓𝄞", 3), "aü");
  EXPECT_EQ(codec::CutText("aü✓𝄞", 9), "aü✓");
  EXPECT_EQ(codec::CutText("\xe2\x9c", 100), "\uFFFD\uFFFD") << "a character that ends too early";
  EXPECT_EQ(codec::CutText("", 0), "");
}

}  // namespace
}  // namespace muster
