// Snapshots, and the thread that writes them while training goes on.
#include "worker/client/saver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/format.h"
#include "checkpoint/layout.h"
#include "checkpoint/reader.h"
#include "tests/checkpoint/memory_disk.h"
#include "worker/client/snapshot.h"
#include "worker/client/state_table.h"

namespace muster::worker {
namespace {

constexpr Duration kLong = Duration::Seconds(60);

// A disk on which writes wait while it is closed, and fail with `error` if there is one.
struct Gate {
  void Pass() {
    std::unique_lock lock(mutex);
    ++waiting;
    changed.notify_all();
    changed.wait(lock, [this] { return open; });
    --waiting;
  }
  void Set(bool to) {
    const std::lock_guard lock(mutex);
    open = to;
    changed.notify_all();
  }
  void AwaitWriter() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return waiting > 0; });
  }
  std::mutex mutex;
  std::condition_variable changed;
  bool open = true;
  int waiting = 0;
  bool disk_gone = false;
  Status error;
};

class GatedFile : public checkpoint::WritableFile {
 public:
  GatedFile(std::shared_ptr<Gate> gate, std::unique_ptr<checkpoint::WritableFile> base)
      : gate_(std::move(gate)), base_(std::move(base)) {}
  Status WriteAt(std::int64_t offset, std::span<const std::byte> bytes) override {
    gate_->Pass();
    MUSTER_RETURN_IF_ERROR(gate_->error);
    return base_->WriteAt(offset, bytes);
  }
  Status SetSize(std::int64_t bytes) override { return base_->SetSize(bytes); }
  Status Sync() override { return base_->Sync(); }
  Status Close() override { return base_->Close(); }

 private:
  std::shared_ptr<Gate> gate_;
  std::unique_ptr<checkpoint::WritableFile> base_;
};

class GatedDisk : public checkpoint::MemoryDisk {
 public:
  explicit GatedDisk(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}
  ~GatedDisk() override {
    const std::lock_guard lock(gate_->mutex);
    gate_->disk_gone = true;
    gate_->changed.notify_all();
  }
  [[nodiscard]] Result<std::unique_ptr<checkpoint::WritableFile>> CreateExclusively(
      const std::string& path) override {
    auto file = MemoryDisk::CreateExclusively(path);
    if (!file.ok()) return file.status();
    return std::unique_ptr<checkpoint::WritableFile>(
        std::make_unique<GatedFile>(gate_, std::move(*file)));
  }

 private:
  std::shared_ptr<Gate> gate_;
};

// What the saver has answered. Shared with it, for it may outlive the test's part of it.
struct Answers {
  void Add(Message message) {
    const std::lock_guard lock(mutex);
    messages.push_back(std::move(message));
    changed.notify_all();
  }
  Message Await(std::size_t index) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return messages.size() > index; });
    return messages[index];
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Message> messages;
};

class SaverTest : public testing::Test {
 protected:
  SaverTest() : values_(3000), step_(1) {
    Add("values", {3000}, DType::kFloat32, std::as_writable_bytes(std::span(values_)));
    Add("step", {}, DType::kI64, std::as_writable_bytes(std::span(step_)));
    MakeSaver(kLong);
  }
  ~SaverTest() override { gate_->Set(true); }

  void MakeSaver(Duration patience) {
    auto disk = std::make_unique<GatedDisk>(gate_);
    disk_ = disk.get();
    EXPECT_TRUE(disk_->MakeDirectory("/c").ok());
    saver_ = std::make_unique<Saver>(
        std::move(disk), "/c", [answers = answers_](Message m) { answers->Add(std::move(m)); },
        patience);
  }
  void Add(const char* name, Shape shape, DType dtype, std::span<std::byte> memory) {
    auto slot = std::make_shared<TensorSlot>();
    slot->spec = {name, dtype, std::move(shape), -1};
    slot->memory = memory;
    table_.Add(std::move(slot));
  }
  void SetAll(std::int64_t value) {
    values_.assign(values_.size(), static_cast<float>(value));
    step_[0] = value;
  }
  Status Save(std::int64_t step) {
    return saver_->Save(table_, {"job", Key(step), Lineage(1), Rank(0), 1, table_.Specs()});
  }
  static CheckpointKey Key(std::int64_t step) { return {Step(step), Generation(1)}; }

  // Every element of the checkpoint of `file` is `step`.
  void ExpectSaved(std::int64_t step, const FileRecord& file) {
    CheckpointRecord record;
    record.job = "job";
    record.key = Key(step);
    record.lineage = Lineage(1);
    record.world_size = 1;
    record.directory = checkpoint::DirectoryName(record.key);
    record.tensors = table_.Specs();
    record.files = {file};
    record.bytes = file.bytes;
    std::vector<float> values(values_.size());
    std::int64_t saved_step = 0;
    const checkpoint::WantedBox wanted[] = {
        {0, Box::Whole({3000}), std::as_writable_bytes(std::span(values))},
        {1, Box::Whole({}), std::as_writable_bytes(std::span(&saved_step, 1))}};
    const auto report = checkpoint::LoadBoxes(*disk_, "/c", record, wanted);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(saved_step, step);
    for (const float value : values) ASSERT_EQ(value, static_cast<float>(step));
  }
  void ExpectWritten(std::size_t answer, std::int64_t step) {
    const Message message = answers_->Await(answer);
    const auto* written = std::get_if<ShardWritten>(&message);
    ASSERT_NE(written, nullptr);
    EXPECT_EQ(written->key, Key(step));
    ASSERT_TRUE(saver_->AwaitIdle(kLong));
    ExpectSaved(step, written->file);
  }

  StateTable table_;
  std::vector<float> values_;
  std::vector<std::int64_t> step_;
  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::shared_ptr<Answers> answers_ = std::make_shared<Answers>();
  GatedDisk* disk_ = nullptr;
  std::unique_ptr<Saver> saver_;
};

// S05: what changes after Save has returned is not in the checkpoint, however late it is written,
// and neither is what lay at an address that a tensor has left.
TEST_F(SaverTest, SnapshotsAreByValue) {
  gate_->Set(false);
  SetAll(7);
  ASSERT_TRUE(Save(7).ok());
  gate_->AwaitWriter();
  SetAll(8);
  gate_->Set(true);
  ExpectWritten(0, 7);
  std::vector<float> moved(values_.size(), 9);
  table_.slots()[0]->memory = std::as_writable_bytes(std::span(moved));
  step_[0] = 9;
  ASSERT_TRUE(Save(9).ok());
  ExpectWritten(1, 9);
}

// A save that comes too soon is skipped and counted, and never waits.
TEST_F(SaverTest, OneAtATime) {
  gate_->Set(false);
  SetAll(1);
  ASSERT_TRUE(Save(1).ok());
  gate_->AwaitWriter();
  EXPECT_FALSE(saver_->AwaitIdle(Duration::Millis(0)));
  for (std::int64_t step = 2; step <= 3; ++step) {
    const Status status = Save(step);
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    EXPECT_NE(status.message().find("busy"), std::string::npos);
  }
  EXPECT_EQ(saver_->skipped(), 2);
  gate_->Set(true);
  ExpectWritten(0, 1);
  SetAll(4);
  ASSERT_TRUE(Save(4).ok());
  ExpectWritten(1, 4);
  EXPECT_EQ(answers_->messages.size(), 2U);
}

// S04: a failed save says so, and the next one, from the same memory, does not depend on it.
TEST_F(SaverTest, FailedSavesAreAnswered) {
  gate_->error = ResourceExhausted("disk full");
  SetAll(1);
  ASSERT_TRUE(Save(1).ok());
  const Message message = answers_->Await(0);
  const auto* failed = std::get_if<ShardFailed>(&message);
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->code, Code::kResourceExhausted);
  EXPECT_EQ(failed->reason, "disk full");
  ASSERT_TRUE(saver_->AwaitIdle(kLong));
  gate_->error = {};
  SetAll(2);
  ASSERT_TRUE(Save(2).ok());
  ExpectWritten(1, 2);
}

// S18: while the storage hangs, saves are skipped; once it answers again, they work.
TEST_F(SaverTest, StorageThatHangsForAWhile) {
  gate_->Set(false);
  SetAll(1);
  ASSERT_TRUE(Save(1).ok());
  gate_->AwaitWriter();
  EXPECT_FALSE(Save(2).ok());
  gate_->Set(true);
  ExpectWritten(0, 1);
  SetAll(3);
  ASSERT_TRUE(Save(3).ok());
  ExpectWritten(1, 3);
}

// S18: a storage that never answers does not keep the process from ending. The thread that is left
// behind is mute, and uses nothing of what has gone.
TEST_F(SaverTest, StorageThatHangsForEver) {
  MakeSaver(Duration::Millis(1));
  gate_->Set(false);
  SetAll(1);
  ASSERT_TRUE(Save(1).ok());
  gate_->AwaitWriter();
  gate_->disk_gone = false;
  testing::internal::CaptureStderr();
  saver_.reset();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("/c has not answered"), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  // When it does answer, the thread lets go of what it had, and ends.
  gate_->Set(true);
  std::unique_lock lock(gate_->mutex);
  gate_->changed.wait(lock, [this] { return gate_->disk_gone; });
  EXPECT_TRUE(answers_->messages.empty());
}

// A preparation at any moment does no harm, and the snapshot is still right.
TEST_F(SaverTest, Prepared) {
  for (std::int64_t step = 1; step <= 20; ++step) {
    saver_->Prepare(step * 3000);
    SetAll(step);
    ASSERT_TRUE(Save(step).ok());
    saver_->Prepare(1);
    ExpectWritten(static_cast<std::size_t>(step - 1), step);
  }
}

// Sharded and replicated tensors, large enough to be cut into pieces, along each dimension.
TEST(Snapshots, AreTheDataOfTheFile) {
  constexpr std::int64_t kRows = 3000;
  constexpr std::int64_t kColumns = 2000;
  StateTable table;
  std::vector<std::uint16_t> whole(kRows * kColumns);
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<std::uint16_t>(i * 40503);
  std::vector<double> small = {1, 2, 3};
  const auto add = [&](const char* name, DType dtype, Shape shape, int cut) {
    auto slot = std::make_shared<TensorSlot>();
    slot->spec = {name, dtype, std::move(shape), cut};
    slot->kind = cut < 0 ? TensorKind::kReplicated : TensorKind::kSharded;
    table.Add(slot);
    return slot;
  };
  add("small", DType::kFloat64, {3}, -1)->memory = std::as_writable_bytes(std::span(small));
  add("whole", DType::kU16, {1, kRows, kColumns}, -1)->memory =
      std::as_writable_bytes(std::span(whole));
  add("none", DType::kU8, {0}, -1);
  const auto columns = add("columns", DType::kU16, {kRows, kColumns}, 1);
  ASSERT_TRUE(table.BeginCut(Generation(1), Rank(1), 3, false).ok());
  table.AdoptCut(Generation(1));
  const std::span<std::byte> held = columns->held.span();
  for (std::size_t i = 0; i < held.size(); ++i) held[i] = static_cast<std::byte>(i % 251);

  const checkpoint::ShardPlan plan{"job",        {Step(1), Generation(1)}, Lineage(1), Rank(1), 3,
                                   table.Specs()};
  for (const int threads : {1, 3}) {
    checkpoint::IoPool pool(threads);
    checkpoint::AlignedBuffer data;
    ASSERT_TRUE(TakeSnapshot(table, plan, pool, &data).ok());
    const auto layout = checkpoint::LayoutOf(plan.tensors, Rank(1), 3, {});
    ASSERT_EQ(data.size(), layout->back().end);
    for (const checkpoint::StoredTensor& stored : *layout) {
      const auto part = data.span().subspan(static_cast<std::size_t>(stored.begin),
                                            static_cast<std::size_t>(stored.end - stored.begin));
      if (stored.spec.name == "small") {
        EXPECT_EQ(std::memcmp(part.data(), &small[1], 8), 0);
      } else if (stored.spec.name == "columns") {
        EXPECT_TRUE(std::ranges::equal(part, held));
      } else {
        // One dimension of extent 1 is cut over three ranks: rank 0 has it all.
        ADD_FAILURE() << stored.spec.name;
      }
    }
  }
  checkpoint::ShardPlan first = plan;
  first.rank = Rank(0);
  ASSERT_TRUE(table.BeginCut(Generation(2), Rank(0), 3, false).ok());
  table.AdoptCut(Generation(2));
  checkpoint::IoPool pool(2);
  checkpoint::AlignedBuffer data;
  ASSERT_TRUE(TakeSnapshot(table, first, pool, &data).ok());
  const auto layout = checkpoint::LayoutOf(first.tensors, Rank(0), 3, {});
  const auto& stored = *std::ranges::find_if(
      *layout, [](const auto& tensor) { return tensor.spec.name == "whole"; });
  EXPECT_EQ(std::memcmp(data.span().data() + stored.begin, whole.data(), whole.size() * 2), 0);
}

}  // namespace
}  // namespace muster::worker
