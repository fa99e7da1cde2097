// A checkpoint as other tools take it.
#include "checkpoint/export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/writer.h"
#include "tests/checkpoint/faulty_file_system.h"
#include "tests/checkpoint/memory_disk.h"
#include "tests/checkpoint/random_layout.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

using nlohmann::json;

// A file as a reader that knows safetensors alone sees it.
struct Model {
  std::map<std::string, std::string> metadata;
  std::map<std::string, SafetensorsEntry> entries;
  std::map<std::string, std::string> bytes;
};

class Exporting : public testing::Test {
 protected:
  Exporting() {
    EXPECT_TRUE(CheckRoot(fs_, "/c").ok());
    EXPECT_TRUE(fs_.MakeDirectory("/out").ok());
    EXPECT_TRUE(fs_.SyncDirectory("/").ok());
  }

  Status ExportTo(FileSystem& fs, const CheckpointRecord& record, const std::string& target,
                  const ExportOptions& options = {}, const ExportRun& run = {}) {
    const Result<ExportPlan> plan = PlanExport(record, target, options);
    if (!plan.ok()) return plan.status();
    return Export(fs, "/c", record, *plan, alone_, run);
  }

  Model Read(const std::string& path) {
    const std::string text = *ReadWhole(fs_, path, 1 << 24);
    const std::int64_t start = DataStartOf(text, std::ssize(text)).value();
    const SafetensorsHeader header =
        DecodeSafetensors(std::string_view(text).substr(0, static_cast<std::size_t>(start)),
                          std::ssize(text))
            .value();
    Model model;
    model.metadata = header.metadata;
    for (const SafetensorsEntry& entry : header.tensors) {
      model.entries[entry.name] = entry;
      model.bytes[entry.name] = text.substr(static_cast<std::size_t>(start + entry.begin),
                                            static_cast<std::size_t>(entry.end - entry.begin));
      EXPECT_EQ((start + entry.begin) % SizeOf(entry.dtype), 0) << entry.name << " is not aligned";
    }
    return model;
  }

  // Does the model have the tensor as it is in the state?
  static void ExpectSame(const Model& model, const State& state, std::size_t tensor) {
    const TensorSpec& spec = state.tensors[tensor];
    ASSERT_TRUE(model.entries.contains(spec.name)) << spec.name;
    EXPECT_EQ(model.entries.at(spec.name).dtype, spec.dtype);
    EXPECT_EQ(model.entries.at(spec.name).shape, spec.shape);
    const Bytes& expected = state.bytes[tensor];
    EXPECT_EQ(model.bytes.at(spec.name),
              std::string(reinterpret_cast<const char*>(expected.data()), expected.size()))
        << spec.name;
  }

  CheckpointRecord SaveOf(const State& state, std::int32_t ranks = 3) {
    return Save(fs_, "/c", state, Key(40, 2), ranks).value();
  }

  [[nodiscard]] std::vector<std::string> Names(const std::string& directory) {
    return fs_.List(directory).value();
  }

  MemoryDisk fs_;
  IoPool alone_{1};
};

// A tensor that is larger than the buffer, after some that are smaller.
std::vector<TensorSpec> SmallAndLarge() {
  std::vector<TensorSpec> tensors = VariedTensors();
  tensors.push_back({"large", DType::kFloat32, {61, 7, 29}, 1});
  tensors.push_back({"large.bytes", DType::kU8, {20'003}, kFlat});
  return tensors;
}

TEST_F(Exporting, OneFileHasWholeTensors) {
  const State state = MakeState(SmallAndLarge(), 1);
  ExportRun run;
  run.buffer_bytes = 8192;
  std::int64_t done = 0;
  run.progress = [&](std::int64_t bytes) { done += bytes; };
  for (const std::int32_t ranks : {1, 3}) {
    const CheckpointRecord record = SaveOf(state, ranks);
    const std::string target = "/out/of" + std::to_string(ranks) + ".safetensors";
    done = 0;
    const Status status = ExportTo(fs_, record, target, {}, run);
    ASSERT_TRUE(status.ok()) << status.message();
    const Model model = Read(target);
    EXPECT_EQ(model.entries.size(), state.tensors.size());
    for (std::size_t i = 0; i < state.tensors.size(); ++i) ExpectSame(model, state, i);
    EXPECT_EQ(done, PlanExport(record, target, {})->data_bytes);
    const std::map<std::string, std::string> expected = {{"format", "pt"},
                                                         {"muster.job", "test-job"},
                                                         {"muster.step", "40"},
                                                         {"muster.generation", "2"}};
    EXPECT_EQ(model.metadata, expected);
  }
  EXPECT_EQ(Names("/out"), (std::vector<std::string>{"of1.safetensors", "of3.safetensors"}));
}

TEST_F(Exporting, AnyLayout) {
  Prng prng(4);
  for (int round = 0; round < 40; ++round) {
    std::vector<TensorSpec> tensors;
    for (int i = 0; i < 8; ++i) tensors.push_back(RandomTensor("t" + std::to_string(i), prng));
    const State state = MakeState(tensors, prng.Next());
    const auto ranks = static_cast<std::int32_t>(prng.Below(4) + 1);
    const CheckpointRecord record =
        SaveListed(fs_, "/c", state, Key(round, 1), RandomListedBoxes(tensors, ranks, prng))
            .value();
    const Status status = ExportTo(fs_, record, "/out/m.safetensors", {}, {.force = true});
    ASSERT_TRUE(status.ok()) << status.message();
    const Model model = Read("/out/m.safetensors");
    for (std::size_t i = 0; i < tensors.size(); ++i) ExpectSame(model, state, i);
  }
}

TEST_F(Exporting, PartsWithAnIndex) {
  const State state = MakeState({{"a", DType::kU8, {600}, 0},
                                 {"b", DType::kFloat32, {100}, -1},
                                 {"c", DType::kU8, {1}, 0},
                                 {"d", DType::kI64, {500}, 0},
                                 {"e", DType::kU8, {10}, 0}},
                                1);
  const CheckpointRecord record = SaveOf(state);
  ASSERT_TRUE(ExportTo(fs_, record, "/out/hf", {.part_bytes = 1000}).ok());
  const std::vector<std::string> names = {
      "model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
      "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors",
      "model.safetensors.index.json"};
  EXPECT_EQ(Names("/out/hf"), names);
  const json index = json::parse(*ReadWhole(fs_, "/out/hf/model.safetensors.index.json", 1 << 20));
  EXPECT_EQ(index["metadata"]["total_size"], 600 + 400 + 1 + 4000 + 10);
  EXPECT_EQ(index["weight_map"].size(), state.tensors.size());
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    const std::string file = index["weight_map"][state.tensors[i].name];
    const Model model = Read("/out/hf/" + file);
    ExpectSame(model, state, i);
    EXPECT_EQ(model.metadata.at("format"), "pt");
  }
  EXPECT_EQ(Read("/out/hf/" + names[0]).entries.size(), 2U);  // 600 + 400
  EXPECT_EQ(Read("/out/hf/" + names[2]).entries.size(), 1U);  // larger than a part
}

TEST_F(Exporting, ASinglePartNeedsNoIndex) {
  const State state = MakeState(VariedTensors(), 1);
  ASSERT_TRUE(ExportTo(fs_, SaveOf(state), "/out/hf", {.part_bytes = 1 << 20}).ok());
  EXPECT_EQ(Names("/out/hf"), std::vector<std::string>{"model.safetensors"});
}

// L08
TEST_F(Exporting, AliasesAreListedOrCopied) {
  TensorSpec head{"head", DType::kFloat32, {4, 3}, 0, "", "embedding"};
  State state = MakeState(
      {{"embedding", DType::kFloat32, {4, 3}, 0}, head, {"packed", DType::kU8, {6}, 0, "F4"}}, 1);
  state.bytes[1] = state.bytes[0];
  const CheckpointRecord record = SaveOf(state);
  ASSERT_TRUE(ExportTo(fs_, record, "/out/a.safetensors").ok());
  const Model listed = Read("/out/a.safetensors");
  EXPECT_EQ(listed.entries.size(), 2U);
  EXPECT_EQ(json::parse(listed.metadata.at("muster.aliases")), json({{"head", "embedding"}}));
  EXPECT_EQ(json::parse(listed.metadata.at("muster.logical_dtypes")), json({{"packed", "F4"}}));
  ExpectSame(listed, state, 2);

  ASSERT_TRUE(ExportTo(fs_, record, "/out/b.safetensors", {.copy_aliases = true}).ok());
  const Model copied = Read("/out/b.safetensors");
  EXPECT_FALSE(copied.metadata.contains("muster.aliases"));
  for (std::size_t i = 0; i < 3; ++i) ExpectSame(copied, state, i);
}

TEST_F(Exporting, ReplacesOnlyWhenTold) {
  const State state = MakeState({{"a", DType::kU8, {600}, 0}, {"b", DType::kU8, {600}, 0}}, 1);
  const CheckpointRecord record = SaveOf(state);
  ASSERT_TRUE(ExportTo(fs_, record, "/out/m.safetensors").ok());
  EXPECT_EQ(ExportTo(fs_, record, "/out/m.safetensors").code(), Code::kAlreadyExists);
  EXPECT_TRUE(ExportTo(fs_, record, "/out/m.safetensors", {}, {.force = true}).ok());

  ASSERT_TRUE(ExportTo(fs_, record, "/out/hf", {.part_bytes = 1000}).ok());
  fs_.Overwrite("/out/hf/config.json", "{}");
  EXPECT_EQ(ExportTo(fs_, record, "/out/hf", {.part_bytes = 5000}).code(), Code::kAlreadyExists);
  ASSERT_TRUE(ExportTo(fs_, record, "/out/hf", {.part_bytes = 5000}, {.force = true}).ok());
  // No part of the old one is left that somebody could take for one of the new one.
  EXPECT_EQ(Names("/out/hf"), (std::vector<std::string>{"config.json", "model.safetensors"}));
}

TEST_F(Exporting, RefusesBadTargets) {
  const CheckpointRecord record = SaveOf(MakeState(VariedTensors(), 1));
  const std::string inside = "/c/" + record.directory;
  EXPECT_EQ(ExportTo(fs_, record, inside, {.part_bytes = 9}).code(), Code::kInvalidArgument);
  EXPECT_EQ(ExportTo(fs_, record, inside + "/m.safetensors").code(), Code::kInvalidArgument);
  EXPECT_EQ(ExportTo(fs_, record, "/nowhere/m.safetensors").code(), Code::kNotFound);
  EXPECT_EQ(ExportTo(fs_, record, "/nowhere/hf", {.part_bytes = 9}).code(), Code::kNotFound);
  fs_.set_free_bytes(100);
  EXPECT_EQ(ExportTo(fs_, record, "/out/m.safetensors").code(), Code::kResourceExhausted);
  EXPECT_TRUE(Names("/out").empty());
}

TEST_F(Exporting, NothingOfADamagedCheckpoint) {
  const CheckpointRecord record = SaveOf(MakeState(SmallAndLarge(), 1));
  const std::string path = "/c/" + record.directory + "/" + record.files[1].name;
  std::string content = *ReadWhole(fs_, path, 1 << 20);
  content.back() = static_cast<char>(content.back() ^ 1);
  fs_.Overwrite(path, content);
  EXPECT_EQ(ExportTo(fs_, record, "/out/m.safetensors").code(), Code::kDataLoss);
  EXPECT_TRUE(Names("/out").empty());
}

// S03, S07: after an error, a kill or a power cut at any call, what has a name of the export is
// whole, and what was there before is still there or replaced.
TEST_F(Exporting, AppearsWholeOrNotAtAll) {
  using Fault = FaultyFileSystem::Fault;
  const State state = MakeState({{"a", DType::kU8, {600}, 0}, {"b", DType::kU8, {600}, 0}}, 1);
  const State old_state = MakeState(state.tensors, 2);
  const CheckpointRecord record = SaveOf(state, 1);
  const CheckpointRecord old = Save(fs_, "/c", old_state, Key(39, 2), 1).value();
  const std::string target = "/out/m.safetensors";
  ASSERT_TRUE(ExportTo(fs_, old, target).ok());
  FaultyFileSystem faulty(fs_);
  for (const Fault fault : {Fault::kFailTorn, Fault::kStopTorn}) {
    for (std::int64_t k = 1;; ++k) {
      ASSERT_LT(k, 1000);
      faulty.Set(fault, k, Internal("Input/output error"));
      const Status status = ExportTo(faulty, record, target, {}, {.force = true});
      const bool finished = faulty.calls() < k;
      EXPECT_EQ(status.ok(), finished) << k;
      for (const std::string& name : Names("/out")) {
        if (name == "m.safetensors") continue;
        EXPECT_EQ(fault, Fault::kStopTorn) << k << ": an error leaves " << name;
        ASSERT_TRUE(fs_.Unlink("/out/" + name).ok());
      }
      if (status.ok()) fs_.LosePower();
      const Model model = Read(target);
      if (model.metadata.at("muster.step") == "40") {
        ExpectSame(model, state, 0);
        ASSERT_TRUE(ExportTo(fs_, old, target, {}, {.force = true}).ok());
      } else {
        ExpectSame(model, old_state, 0);
      }
      if (finished) break;
    }
  }
}

// S07: each sync is needed.
TEST_F(Exporting, IsDurable) {
  const State state = MakeState({{"a", DType::kU8, {600}, 0}, {"b", DType::kU8, {600}, 0}}, 1);
  const CheckpointRecord record = SaveOf(state);
  ASSERT_TRUE(ExportTo(fs_, record, "/out/hf", {.part_bytes = 1000}).ok());
  fs_.LosePower();
  EXPECT_EQ(Names("/out/hf").size(), 3U);
  ExpectSame(Read("/out/hf/model-00002-of-00002.safetensors"), state, 1);
  fs_.Lie({.file_sync = true, .directory_sync = false});
  ASSERT_TRUE(ExportTo(fs_, record, "/out/x.safetensors").ok());
  fs_.LosePower();
  const Result<std::string> lost = ReadWhole(fs_, "/out/x.safetensors", 1 << 20);
  EXPECT_TRUE(!lost.ok() || !DataStartOf(*lost, std::ssize(*lost)).ok());
  fs_.Lie({.file_sync = false, .directory_sync = true});
  ASSERT_TRUE(ExportTo(fs_, record, "/out/y.safetensors").ok());
  fs_.LosePower();
  EXPECT_FALSE(fs_.OpenForReading("/out/y.safetensors").ok());
}

}  // namespace
}  // namespace muster::checkpoint
