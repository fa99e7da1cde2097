#include "worker/cli/checkpoint_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/posix_file_system.h"
#include "checkpoint/reader.h"
#include "checkpoint/root_claim.h"
#include "checkpoint/writer.h"
#include "tests/checkpoint/support.h"

namespace muster::cli {
namespace {

using checkpoint::Key;
using checkpoint::ReadFileBytes;
using checkpoint::WriteFileBytes;
using nlohmann::json;
using testing::HasSubstr;

using Command = int (*)(checkpoint::FileSystem&, const CheckpointOptions&);

class CheckpointCommand : public testing::Test {
 protected:
  CheckpointCommand()
      : state_(checkpoint::MakeState({{"a", DType::kFloat32, {5, 3}, 0},
                                      {"packed", DType::kU8, {3, 7}, 1, "F4"},
                                      {"b", DType::kFloat32, {5, 3}, 0, "", "a"}},
                                     1)) {
    state_.bytes[2] = state_.bytes[0];
    EXPECT_TRUE(checkpoint::CheckRoot(fs_, root_).ok());
  }

  // Runs the command and keeps what it printed.
  int Run(Command command, CheckpointOptions options) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int code = command(fs_, options);
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    return code;
  }
  int Run(Command command, const std::string& path) {
    CheckpointOptions options;
    options.path = path;
    return Run(command, options);
  }
  CheckpointRecord SaveAt(std::int64_t step) {
    return checkpoint::Save(fs_, root_, state_, Key(step, 1), 2).value();
  }
  [[nodiscard]] std::string PathOf(const CheckpointRecord& record, const std::string& name = "") {
    const std::string path = root_ + "/" + record.directory;
    return name.empty() ? path : path + "/" + name;
  }
  void Damage(const std::string& path) {
    std::string content = ReadFileBytes(path);
    content.back() = static_cast<char>(content.back() ^ 1);
    WriteFileBytes(path, content);
  }

  checkpoint::TemporaryDirectory directory_;
  checkpoint::PosixFileSystem fs_;
  const std::string root_ = directory_.path() + "/c";
  checkpoint::State state_;
  std::string out_;
  std::string err_;
};

TEST_F(CheckpointCommand, LsShowsStates) {
  EXPECT_EQ(Run(RunCheckpointLs, root_), 0);
  EXPECT_THAT(out_, HasSubstr("no checkpoints in " + root_));

  const CheckpointRecord first = SaveAt(10);
  const CheckpointRecord second = SaveAt(20);
  const CheckpointRecord third = SaveAt(30);
  std::filesystem::remove(PathOf(second, "manifest.json"));
  WriteFileBytes(PathOf(third, "manifest.json"), "{}\n");
  ASSERT_EQ(Run(RunCheckpointPin, PathOf(first)), 0) << err_;
  EXPECT_EQ(Run(RunCheckpointLs, root_), 0);
  EXPECT_THAT(out_, HasSubstr("ok, pinned"));
  EXPECT_THAT(out_, HasSubstr("no manifest"));
  EXPECT_THAT(out_, HasSubstr("damaged: manifest.json: it is cut short"));
  EXPECT_THAT(out_, HasSubstr("1 checkpoint and 2 that cannot be used"));
  EXPECT_LT(out_.find(first.directory), out_.find(third.directory));

  CheckpointOptions options;
  options.path = root_;
  options.json = true;
  EXPECT_EQ(Run(RunCheckpointLs, options), 0);
  const json list = json::parse(out_)["checkpoints"];
  ASSERT_EQ(list.size(), 3U);
  EXPECT_EQ(list[0]["step"], 10);
  EXPECT_EQ(list[0]["job"], "test-job");
  EXPECT_EQ(list[0]["state"], "ok");
  EXPECT_EQ(list[0]["pinned"], true);
  EXPECT_EQ(list[1]["state"], "incomplete");
  EXPECT_EQ(list[2]["state"], "damaged");
}

TEST_F(CheckpointCommand, ErrorsNameTheRemedy) {
  EXPECT_EQ(Run(RunCheckpointLs, "/nowhere/at/all"), 1);
  EXPECT_THAT(err_, HasSubstr("there is no directory /nowhere/at/all"));
  EXPECT_EQ(Run(RunCheckpointShow, root_ + "/s000000000001-g00000001"), 1);
  EXPECT_THAT(err_, HasSubstr("muster checkpoint ls " + root_));
  const CheckpointRecord record = SaveAt(10);
  EXPECT_EQ(Run(RunCheckpointShow, root_), 1);
  EXPECT_THAT(err_, HasSubstr("the newest one is " + PathOf(record)));
  std::filesystem::remove(PathOf(record, "manifest.json"));
  EXPECT_EQ(Run(RunCheckpointShow, PathOf(record)), 1);
  EXPECT_THAT(err_, HasSubstr("muster checkpoint reindex"));
}

TEST_F(CheckpointCommand, ShowDescribesOne) {
  const CheckpointRecord record = SaveAt(10);
  CheckpointOptions options;
  options.path = PathOf(record) + "/";
  EXPECT_EQ(Run(RunCheckpointShow, options), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("10, saved in generation 1 by 2 ranks"));
  EXPECT_THAT(out_, HasSubstr("3 (1 of them an alias), 81 B: 1 F32, 1 F4 in U8"));
  EXPECT_THAT(out_, HasSubstr("r00001.safetensors"));
  options.tensors = true;
  EXPECT_EQ(Run(RunCheckpointShow, options), 0);
  EXPECT_THAT(out_, HasSubstr("[3,7]"));
  EXPECT_THAT(out_, HasSubstr("dimension 1"));
  EXPECT_THAT(out_, HasSubstr("as a"));
  options.json = true;
  EXPECT_EQ(Run(RunCheckpointShow, options), 0);
  EXPECT_EQ(json::parse(out_)["record"]["files"].size(), 2U);
}

// L11: each damaged file is named, and the others are verified all the same.
TEST_F(CheckpointCommand, VerifyGoesOnAfterDamage) {
  EXPECT_EQ(Run(RunCheckpointVerify, root_), 1);  // there is nothing that could be good
  const CheckpointRecord damaged = SaveAt(10);
  const CheckpointRecord good = SaveAt(20);
  const CheckpointRecord unfinished = SaveAt(30);
  std::filesystem::remove(PathOf(unfinished, "manifest.json"));
  EXPECT_EQ(Run(RunCheckpointVerify, root_), 0);
  EXPECT_THAT(out_, HasSubstr(unfinished.directory + ": passed over"));
  EXPECT_EQ(Run(RunCheckpointVerify, PathOf(unfinished)), 1);

  Damage(PathOf(damaged, damaged.files[0].name));
  Damage(PathOf(damaged, damaged.files[1].name));
  EXPECT_EQ(Run(RunCheckpointVerify, root_), 1);
  EXPECT_THAT(out_, HasSubstr(damaged.directory + ": damaged"));
  EXPECT_THAT(out_, HasSubstr(good.directory + ": ok"));
  EXPECT_THAT(err_, HasSubstr(damaged.files[0].name + ": block"));
  EXPECT_THAT(err_, HasSubstr(damaged.files[1].name + ": block"));
  EXPECT_EQ(Run(RunCheckpointVerify, PathOf(good)), 0);
}

TEST_F(CheckpointCommand, ReindexRestoresWhatIsWhole) {
  const CheckpointRecord good = SaveAt(10);
  const CheckpointRecord lost = SaveAt(20);
  const CheckpointRecord dead = SaveAt(30);
  std::filesystem::remove(PathOf(lost, "manifest.json"));
  std::filesystem::remove(PathOf(dead, "manifest.json"));
  std::filesystem::remove(PathOf(dead, dead.files[1].name));
  CheckpointOptions options;
  options.path = root_;
  options.dry_run = true;
  EXPECT_EQ(Run(RunCheckpointReindex, options), 0) << err_;
  EXPECT_THAT(out_, HasSubstr(lost.directory + ": would get a new manifest"));
  EXPECT_FALSE(checkpoint::ReadManifest(fs_, root_, lost.directory).ok());
  options.dry_run = false;
  EXPECT_EQ(Run(RunCheckpointReindex, options), 0) << err_;
  EXPECT_THAT(out_, HasSubstr(lost.directory + ": new manifest"));
  EXPECT_THAT(out_, HasSubstr("left alone: " + PathOf(dead)));
  EXPECT_THAT(out_, HasSubstr("2 checkpoints can be loaded, the newest is " + PathOf(lost)));
  EXPECT_THAT(out_, HasSubstr("job test-job would go on from step 20"));
  EXPECT_EQ(checkpoint::ReadManifest(fs_, root_, lost.directory)->record, lost);
  EXPECT_EQ(err_, "");

  // It had been complete, and is not any more.
  WriteFileBytes(PathOf(good, "manifest.json"), "");
  std::filesystem::remove(PathOf(good, good.files[0].name));
  EXPECT_EQ(Run(RunCheckpointReindex, options), 1);
  EXPECT_THAT(err_, HasSubstr("no file of rank 0"));
}

// S16: what a live job is about to finish is none of ours.
TEST_F(CheckpointCommand, ReindexStaysOutOfALiveJobsWay) {
  const CheckpointRecord lost = SaveAt(20);
  std::filesystem::remove(PathOf(lost, "manifest.json"));
  checkpoint::RootOwner self;
  self.job = "busy";
  self.host = "n7";
  self.pid = 4711;
  {
    checkpoint::RootClaim job(root_, self, [&] { return checkpoint::OpenOwnerFile(root_); });
    ASSERT_EQ(job.Claim(Lineage(1), Instant()), checkpoint::RootClaim::Answer::kHeld);
    EXPECT_EQ(Run(RunCheckpointReindex, root_), 1);
    EXPECT_THAT(err_, HasSubstr("in use by job busy (process 4711 on host n7)"));
    EXPECT_FALSE(checkpoint::ReadManifest(fs_, root_, lost.directory).ok());
  }
  EXPECT_EQ(Run(RunCheckpointReindex, root_), 0) << err_;
}

TEST_F(CheckpointCommand, ExportWritesAFileOrParts) {
  CheckpointOptions options;
  options.path = PathOf(SaveAt(10));
  options.target = directory_.path() + "/model.safetensors";
  EXPECT_EQ(Run(RunCheckpointExport, options), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("2 tensors, 81 B, in 1 file"));
  EXPECT_THAT(out_, HasSubstr("left out 1 alias"));
  EXPECT_THAT(out_, HasSubstr("1 tensor is in a type"));
  EXPECT_EQ(Run(RunCheckpointExport, options), 1);
  EXPECT_THAT(err_, HasSubstr("--force"));
  options.force = true;
  EXPECT_EQ(Run(RunCheckpointExport, options), 0);

  options.target = directory_.path() + "/parts";
  options.part_bytes = 70;
  options.copy_aliases = true;
  EXPECT_EQ(Run(RunCheckpointExport, options), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("3 tensors, 141 B, in 3 files"));
  EXPECT_TRUE(std::filesystem::exists(options.target + "/model.safetensors.index.json"));
}

TEST_F(CheckpointCommand, PinAndUnpin) {
  const CheckpointRecord record = SaveAt(10);
  const std::string pin = PathOf(record, "PINNED");
  EXPECT_EQ(Run(RunCheckpointPin, PathOf(record)), 0);
  EXPECT_TRUE(std::filesystem::exists(pin));
  EXPECT_EQ(Run(RunCheckpointPin, PathOf(record)), 0);
  EXPECT_EQ(Run(RunCheckpointUnpin, PathOf(record)), 0);
  EXPECT_FALSE(std::filesystem::exists(pin));
  EXPECT_EQ(Run(RunCheckpointUnpin, PathOf(record)), 0);
  std::filesystem::remove(PathOf(record, "manifest.json"));
  EXPECT_EQ(Run(RunCheckpointPin, PathOf(record)), 1);
  EXPECT_THAT(err_, HasSubstr("cannot be loaded"));
}

}  // namespace
}  // namespace muster::cli
