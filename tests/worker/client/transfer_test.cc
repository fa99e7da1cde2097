// State from rank 0, from live memory and from checkpoints, over real communicators.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/posix_file_system.h"
#include "checkpoint/writer.h"
#include "worker/client/snapshot.h"
#include "worker/client/state_table.h"
#include "worker/client/state_transfer.h"
#include "worker/collective/local_communicator.h"

namespace muster::worker {
namespace {

constexpr std::int64_t kRows = 7;
constexpr std::int64_t kColumns = 5;

// One process: a replicated tensor, one cut along each dimension, one cut flat and tied to another
// name, and a derived one.
class Node {
 public:
  explicit Node(const char* model = "model")
      : model_(10), full_(kRows * kColumns), initial_(kRows * kColumns) {
    for (std::size_t i = 0; i < initial_.size(); ++i) initial_[i] = static_cast<float>(i);
    Add(TensorKind::kReplicated, model, {10}, -1)->memory =
        std::as_writable_bytes(std::span(model_));
    weights_ = Add(TensorKind::kSharded, "weights", {kRows, kColumns}, 0);
    weights_->initial = std::as_bytes(std::span(initial_));
    columns_ = Add(TensorKind::kSharded, "columns", {kRows, kColumns}, 1);
    columns_->fill = *EncodeElement(DType::kFloat32, 2);
    flat_ = Add(TensorKind::kSharded, "flat", {kRows, kColumns}, kFlat);
    flat_->initial = weights_->initial;
    Add(TensorKind::kAlias, "tied", {kRows, kColumns}, kFlat)->spec.alias_of = "flat";
    auto full = Add(TensorKind::kDerived, "full", {kRows, kColumns}, -1);
    full->memory = std::as_writable_bytes(std::span(full_));
    full->from = weights_;
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  StateTable& table() { return table_; }
  std::vector<float>& model() { return model_; }
  const std::vector<float>& full() const { return full_; }

  static std::span<float> Elements(TensorSlot& slot) {
    const std::span<std::byte> raw = slot.held.span();
    return {reinterpret_cast<float*>(raw.data()), raw.size() / sizeof(float)};
  }
  // Each element becomes a function of its place and of `salt`.
  void Scribble(float salt) {
    for (std::size_t i = 0; i < model_.size(); ++i) model_[i] = salt + static_cast<float>(i);
    for (TensorSlot* slot : {weights_.get(), columns_.get(), flat_.get()}) {
      ForEach(*slot,
              [&](std::int64_t place, float& value) { value = salt + static_cast<float>(place); });
    }
  }
  void ExpectScribbled(float salt) {
    for (std::size_t i = 0; i < model_.size(); ++i) {
      ASSERT_EQ(model_[i], salt + static_cast<float>(i));
    }
    for (TensorSlot* slot : {weights_.get(), columns_.get(), flat_.get()}) {
      ForEach(*slot, [&](std::int64_t place, const float& value) {
        ASSERT_EQ(value, salt + static_cast<float>(place)) << slot->spec.name << " " << place;
      });
    }
  }
  void ExpectInitial() {
    for (const float value : model_) ASSERT_EQ(value, 1);
    for (TensorSlot* slot : {weights_.get(), flat_.get()}) {
      ForEach(*slot, [](std::int64_t place, const float& value) {
        ASSERT_EQ(value, static_cast<float>(place));
      });
    }
    ForEach(*columns_, [](std::int64_t, const float& value) { ASSERT_EQ(value, 2); });
  }

 private:
  std::shared_ptr<TensorSlot> Add(TensorKind kind, const char* name, Shape shape, int cut) {
    auto slot = std::make_shared<TensorSlot>();
    slot->kind = kind;
    slot->spec = {name, DType::kFloat32, std::move(shape), cut};
    table_.Add(slot);
    return slot;
  }
  static void ForEach(TensorSlot& slot, const std::function<void(std::int64_t, float&)>& visit) {
    const std::span<float> elements = Elements(slot);
    std::size_t at = 0;
    for (const Box& box : slot.boxes) {
      for (std::int64_t row = box.ranges[0].lo; row < box.ranges[0].hi; ++row) {
        for (std::int64_t column = box.ranges[1].lo; column < box.ranges[1].hi; ++column) {
          visit(row * kColumns + column, elements[at++]);
        }
      }
    }
    ASSERT_EQ(at, elements.size());
  }

  StateTable table_;
  std::vector<float> model_, full_, initial_;
  std::shared_ptr<TensorSlot> weights_, columns_, flat_;
};

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

class Transfer : public testing::Test {
 protected:
  Transfer() {
    std::string pattern = testing::TempDir() + "muster-transfer-XXXXXX";
    root_ = ::mkdtemp(pattern.data());
  }
  ~Transfer() override { std::filesystem::remove_all(root_); }

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
  static void OnAll(const std::vector<Node*>& nodes,
                    const std::function<void(std::size_t, Communicator&)>& body) {
    auto group = MakeLocalGroup(static_cast<std::int32_t>(nodes.size()), Duration::Seconds(60));
    ASSERT_TRUE(group.ok());
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < nodes.size(); ++r) {
      threads.emplace_back([&, r] { body(r, *(*group)[r]); });
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
      EXPECT_TRUE(TakeSnapshot(nodes[r]->table(), plan, pool, &data).ok());
      nodes[r]->Scribble(-7);  // the copy must not change any more
      auto file = checkpoint::WriteShard(fs_, root_, plan, data, pool);
      EXPECT_TRUE(file.ok()) << file.status().ToString();
      record.files.push_back(*file);
      record.bytes += file->bytes;
    }
    return record;
  }

  checkpoint::PosixFileSystem fs_;
  std::string root_;
};

TEST_F(Transfer, InitialValuesAreThoseOfRankZero) {
  for (const std::int32_t size : {1, 2, 4, 9}) {
    std::vector<std::unique_ptr<Node>> owned;
    std::vector<Node*> nodes;
    for (std::int32_t r = 0; r < size; ++r) {
      nodes.push_back(owned.emplace_back(std::make_unique<Node>()).get());
      nodes.back()->model().assign(10, static_cast<float>(1 + r));
    }
    ExpectOk(Form(
        nodes, RecordOf(1, RestoreSource::kInitial, std::vector<std::int32_t>(nodes.size()), 0)));
    for (Node* node : nodes) node->ExpectInitial();
  }
}

TEST_F(Transfer, AfterTrainingInitialValuesAreNotMadeUp) {
  Node node;
  node.table().MarkTrained();
  const auto reports = Form({&node}, RecordOf(1, RestoreSource::kInitial, {0}, 0));
  EXPECT_EQ(reports[0].status.code(), Code::kFailedPrecondition);
  EXPECT_FALSE(reports[0].bad_checkpoint);
}

// Growth, permutation, and what a plan with all holders alive can ask for.
TEST_F(Transfer, LiveStateMovesToTheNewCut) {
  const std::vector<std::vector<std::int32_t>> cases = {
      {0, 1, -1}, {1, 0}, {0, 1}, {-1, 1, 0, -1, -1}};
  for (const auto& previous : cases) {
    std::vector<std::unique_ptr<Node>> owned;
    for (std::size_t i = 0; i < previous.size() + 2; ++i) owned.push_back(std::make_unique<Node>());
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
}

TEST_F(Transfer, ALostShardIsAnErrorNotAGuess) {
  Node a;
  Node b;
  ExpectOk(Form({&a, &b}, RecordOf(1, RestoreSource::kInitial, {0, 0}, 0)));
  const auto reports = Form({&a}, RecordOf(2, RestoreSource::kLive, {0}, 2));
  EXPECT_EQ(reports[0].status.code(), Code::kDataLoss);
}

TEST_F(Transfer, DerivedTensorsAreGatheredFromAllRanks) {
  std::vector<std::unique_ptr<Node>> owned;
  std::vector<Node*> nodes;
  for (int r = 0; r < 3; ++r) nodes.push_back(owned.emplace_back(std::make_unique<Node>()).get());
  ExpectOk(Form(nodes, RecordOf(1, RestoreSource::kInitial, {0, 0, 0}, 0)));
  for (Node* node : nodes) node->Scribble(50);
  OnAll(nodes, [&](std::size_t r, Communicator& communicator) {
    EXPECT_TRUE(GatherDerived(nodes[r]->table(), communicator).ok());
  });
  for (Node* node : nodes) {
    for (std::size_t i = 0; i < node->full().size(); ++i) {
      EXPECT_EQ(node->full()[i], 50 + static_cast<float>(i));
    }
  }
  EXPECT_EQ(nodes[0]->table().Digest(), nodes[2]->table().Digest());
}

TEST_F(Transfer, CheckpointsLoadAtAnyWorldSizeAndBadOnesAreNamed) {
  std::vector<std::unique_ptr<Node>> owned;
  for (int r = 0; r < 6; ++r) owned.push_back(std::make_unique<Node>());
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
    }
    // Whole, and of another model: nobody's fault that another attempt or checkpoint would mend.
    record.restore.manifest_digest = *digest;
    std::vector<std::unique_ptr<Node>> others;
    std::vector<Node*> strangers;
    for (std::size_t r = 0; r < size; ++r) {
      strangers.push_back(others.emplace_back(std::make_unique<Node>("other")).get());
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
  }
}

}  // namespace
}  // namespace muster::worker
