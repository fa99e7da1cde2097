// State from rank 0, from live memory and from checkpoints, over real communicators; on the host
// and on devices.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/posix_file_system.h"
#include "checkpoint/writer.h"
#include "tests/worker/client/state_node.h"
#include "tests/worker/client/straight_communicator.h"
#include "worker/client/snapshot.h"
#include "worker/client/state_table.h"
#include "worker/client/state_transfer.h"
#include "worker/collective/local_communicator.h"

namespace muster::worker {
namespace {

GenerationRecord RecordOf(std::int64_t generation, RestoreSource source,
                          const std::vector<std::int32_t>& previous, std::int32_t base_size) {
  GenerationRecord record;
  record.generation = Generation(generation);
  record.restore.source = source;
  record.restore.base_world_size = base_size;
  for (std::size_t r = 0; r < previous.size(); ++r) {
    MemberEntry entry;
    entry.rank = Rank(static_cast<std::int32_t>(r));
    entry.previous_rank = Rank(source == RestoreSource::kLive ? previous[r] : -1);
    record.members.push_back(entry);
  }
  return record;
}

class Transfer : public ::testing::TestWithParam<NodeLayout> {
 protected:
  Transfer() {
    std::string pattern = ::testing::TempDir() + "muster-transfer-XXXXXX";
    root_ = ::mkdtemp(pattern.data());
  }
  ~Transfer() override { std::filesystem::remove_all(root_); }

  [[nodiscard]] static std::unique_ptr<Node> MakeNode(const char* model = "model") {
    return std::make_unique<Node>(GetParam(), model);
  }
  [[nodiscard]] static std::vector<std::unique_ptr<Node>> MakeNodes(std::size_t count) {
    std::vector<std::unique_ptr<Node>> nodes;
    for (std::size_t i = 0; i < count; ++i) nodes.push_back(MakeNode());
    return nodes;
  }
  // Forms `record` among `nodes`, by rank, and adopts its cut.
  std::vector<RestoreReport> Form(const std::vector<Node*>& nodes, const GenerationRecord& record,
                                  bool adopt = true) {
    std::vector<RestoreReport> reports(nodes.size());
    OnAll(nodes, [&](std::size_t r, Communicator& communicator) {
      reports[r].status = ProveCommunicator(communicator);
      if (!reports[r].status.ok()) return;
      reports[r] = RestoreState(nodes[r]->table(), communicator, record, fs_, root_);
      if (reports[r].status.ok() && adopt) nodes[r]->table().AdoptCut(record.generation);
    });
    return reports;
  }
  void OnAll(const std::vector<Node*>& nodes,
             const std::function<void(std::size_t, Communicator&)>& body) {
    auto group = MakeLocalGroup(static_cast<std::int32_t>(nodes.size()), Duration::Seconds(60));
    ASSERT_TRUE(group.ok());
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < nodes.size(); ++r) {
      threads.emplace_back([&, r] {
        if (!nodes[r]->straight()) return body(r, *(*group)[r]);
        StraightCommunicator communicator(*(*group)[r], *nodes[r]->device());
        body(r, communicator);
        taken_ += communicator.taken();
      });
    }
  }
  static void ExpectOk(const std::vector<RestoreReport>& reports) {
    for (const RestoreReport& report : reports) {
      EXPECT_TRUE(report.status.ok()) << report.status.ToString();
    }
  }
  // Writes the state of `nodes` as a checkpoint.
  CheckpointRecord Save(const std::vector<Node*>& nodes, const CheckpointKey& key) {
    CheckpointRecord record;
    record.job = "job";
    record.lineage = Lineage(1);
    record.key = key;
    record.world_size = static_cast<std::int32_t>(nodes.size());
    record.directory = CheckpointDirectory(key);
    record.tensors = nodes[0]->table().Specs();
    for (std::size_t r = 0; r < nodes.size(); ++r) {
      checkpoint::ShardPlan plan{
          "job",          key, Lineage(1), Rank(static_cast<std::int32_t>(r)), record.world_size,
          record.tensors, {}};
      checkpoint::IoPool pool(2);
      checkpoint::AlignedBuffer data;
      std::shared_ptr<Fence> ready;
      EXPECT_TRUE(TakeSnapshot(nodes[r]->table(), plan, pool, &data, &ready).ok());
      nodes[r]->Scribble(-7);  // the copy must not change any more
      nodes[r]->Finish();
      EXPECT_TRUE(ready == nullptr || ready->Passed().value());
      auto file = checkpoint::WriteShard(fs_, root_, plan, data, pool);
      EXPECT_TRUE(file.ok()) << file.status().ToString();
      record.files.push_back(*file);
      record.bytes += file->bytes;
    }
    return record;
  }

  std::atomic<int> taken_ = 0;  // buffers on a device that communicators were given
  checkpoint::PosixFileSystem fs_;
  std::string root_;
};

TEST_P(Transfer, InitialValuesAreThoseOfRankZero) {
  for (const std::int32_t size : {1, 2, 4, 9}) {
    const auto owned = MakeNodes(static_cast<std::size_t>(size));
    std::vector<Node*> nodes;
    for (const auto& node : owned) {
      nodes.push_back(node.get());
      node->SetModel(std::vector<float>(Node::kModel, static_cast<float>(nodes.size())));
    }
    ExpectOk(Form(
        nodes, RecordOf(1, RestoreSource::kInitial, std::vector<std::int32_t>(nodes.size()), 0)));
    for (Node* node : nodes) node->ExpectInitial();
  }
}

TEST_P(Transfer, AfterTrainingInitialValuesAreNotMadeUp) {
  const auto node = MakeNode();
  node->table().MarkTrained();
  const auto reports = Form({node.get()}, RecordOf(1, RestoreSource::kInitial, {0}, 0));
  EXPECT_EQ(reports[0].status.code(), Code::kFailedPrecondition);
  EXPECT_FALSE(reports[0].bad_checkpoint);
}

// Growth, permutation, and what a plan with all holders alive can ask for.
TEST_P(Transfer, LiveStateMovesToTheNewCut) {
  const std::vector<std::vector<std::int32_t>> cases = {
      {0, 1, -1}, {1, 0}, {0, 1}, {-1, 1, 0, -1, -1}};
  for (const auto& previous : cases) {
    const auto owned = MakeNodes(previous.size() + 2);
    std::vector<Node*> old = {owned[0].get(), owned[1].get()};
    ExpectOk(Form(old, RecordOf(1, RestoreSource::kInitial, {0, 0}, 0)));
    for (Node* node : old) node->Scribble(100);
    std::vector<Node*> nodes;
    std::size_t fresh = 2;
    for (const std::int32_t p : previous) {
      nodes.push_back(p >= 0 ? old[static_cast<std::size_t>(p)] : owned[fresh++].get());
    }
    // An attempt that does not start leaves the held cut as it was.
    ExpectOk(Form(nodes, RecordOf(2, RestoreSource::kLive, previous, 2), false));
    for (Node* node : old) node->ExpectScribbled(100);
    ExpectOk(Form(nodes, RecordOf(3, RestoreSource::kLive, previous, 2)));
    for (Node* node : nodes) node->ExpectScribbled(100);
  }
  EXPECT_EQ(taken_ > 0, GetParam().straight);
}

TEST_P(Transfer, ALostShardIsAnErrorNotAGuess) {
  const auto a = MakeNode();
  const auto b = MakeNode();
  ExpectOk(Form({a.get(), b.get()}, RecordOf(1, RestoreSource::kInitial, {0, 0}, 0)));
  const auto reports = Form({a.get()}, RecordOf(2, RestoreSource::kLive, {0}, 2));
  EXPECT_EQ(reports[0].status.code(), Code::kDataLoss);
}

TEST_P(Transfer, DerivedTensorsAreGatheredFromAllRanks) {
  const auto owned = MakeNodes(3);
  const std::vector<Node*> nodes = {owned[0].get(), owned[1].get(), owned[2].get()};
  ExpectOk(Form(nodes, RecordOf(1, RestoreSource::kInitial, {0, 0, 0}, 0)));
  for (Node* node : nodes) node->Scribble(50);
  OnAll(nodes, [&](std::size_t r, Communicator& communicator) {
    EXPECT_TRUE(GatherDerived(nodes[r]->table(), communicator).ok());
  });
  for (Node* node : nodes) {
    const std::vector<float> full = node->full();
    for (std::size_t i = 0; i < full.size(); ++i) EXPECT_EQ(full[i], 50 + static_cast<float>(i));
  }
  Node same;  // on the host
  same.SetModel(nodes[0]->model());
  same.SetFull(nodes[0]->full());
  for (Node* node : nodes) EXPECT_EQ(node->table().Digest().value(), same.table().Digest().value());
  same.SetModel(std::vector<float>(Node::kModel));
  EXPECT_NE(nodes[0]->table().Digest().value(), same.table().Digest().value());
}

TEST_P(Transfer, CheckpointsLoadAtAnyWorldSizeAndBadOnesAreNamed) {
  const auto owned = MakeNodes(6);
  std::vector<Node*> four = {owned[0].get(), owned[1].get(), owned[2].get(), owned[3].get()};
  ExpectOk(Form(four, RecordOf(1, RestoreSource::kInitial, {0, 0, 0, 0}, 0)));
  for (Node* node : four) node->Scribble(9);
  const CheckpointKey key{Step(5), Generation(1)};
  const CheckpointRecord saved = Save(four, key);
  const auto digest = checkpoint::WriteManifest(fs_, root_, saved);
  ASSERT_TRUE(digest.ok()) << digest.status().ToString();
  for (const std::size_t size : {1U, 3U, 6U}) {
    std::vector<Node*> nodes;
    for (std::size_t r = 0; r < size; ++r) nodes.push_back(owned[r].get());
    GenerationRecord record =
        RecordOf(static_cast<std::int64_t>(size) + 1, RestoreSource::kCheckpoint,
                 std::vector<std::int32_t>(size), 0);
    record.restore.checkpoint = key;
    record.restore.directory = saved.directory;
    record.restore.manifest_digest = *digest;
    ExpectOk(Form(nodes, record));
    for (Node* node : nodes) node->ExpectScribbled(9);
    record.restore.manifest_digest ^= 1U;
    for (const RestoreReport& report : Form(nodes, record)) {
      EXPECT_EQ(report.status.code(), Code::kDataLoss);
      EXPECT_TRUE(report.bad_checkpoint);
      EXPECT_TRUE(report.reading);
    }
    // Whole, and of another model: nobody's fault that another attempt or checkpoint would mend.
    record.restore.manifest_digest = *digest;
    std::vector<std::unique_ptr<Node>> others;
    std::vector<Node*> strangers;
    for (std::size_t r = 0; r < size; ++r) {
      strangers.push_back(others.emplace_back(MakeNode("other")).get());
    }
    for (const RestoreReport& report : Form(strangers, record)) {
      EXPECT_EQ(report.status.code(), Code::kInvalidArgument);
      EXPECT_NE(report.status.message().find("1 missing: other; 1 not wanted: "), std::string::npos)
          << report.status.message();
      EXPECT_TRUE(report.contradicts);
      EXPECT_FALSE(report.bad_checkpoint);
    }
    record.restore.directory = "s000000000099-g00000001";
    EXPECT_TRUE(Form(nodes, record)[0].bad_checkpoint);
    if (size != 6 || nodes[0]->device() == nullptr) continue;
    // No word against the checkpoint.
    record.restore.directory = saved.directory;
    nodes[0]->device()->Break("fell off the bus");
    const RestoreReport lost = Form(nodes, record)[0];
    EXPECT_EQ(lost.status.code(), Code::kInternal);
    EXPECT_FALSE(lost.bad_checkpoint);
    EXPECT_FALSE(lost.reading);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Transfer,
                         ::testing::Values(kOnHost, NodeLayout{"Device", kAllTensors, false},
                                           NodeLayout{"DeviceStraight", kAllTensors, true},
                                           NodeLayout{"Mixed", {"weights", "flat"}, false},
                                           NodeLayout{
                                               "MixedStraight", {"model", "columns", "full"}, true},
                                           NodeLayout{"PartsStraight", {"weights"}, true}),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace muster::worker
