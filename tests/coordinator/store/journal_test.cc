// Jobs and checkpoints in the journal, and the index of checkpoints over it.
#include "coordinator/store/journal.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/store/checkpoint_index.h"
#include "tests/coordinator/store/store_support.h"

namespace muster::store {
namespace {

using Steps = std::vector<std::int64_t>;

const JobName kJob("job");

CheckpointKey KeyAt(std::int64_t step, std::int64_t generation) {
  return {.step = Step(step), .generation = Generation(generation)};
}

class JournalTest : public StoreTest {};

TEST_F(JournalTest, StartsEmpty) {
  const auto journal = OpenJournal();
  ASSERT_NE(journal, nullptr);
  EXPECT_TRUE(journal->LoadAll()->empty());
  EXPECT_TRUE(journal->Write(Batch{}).ok());
  EXPECT_TRUE(journal->CheckpointsOf(kJob)->empty());
}

TEST_F(JournalTest, JobsComeBackWithTheirCheckpointsInTheOrderOfCommit) {
  {
    const auto journal = OpenJournal();
    ASSERT_NE(journal, nullptr);
    // A rollback in between: the later checkpoint has the lower step. 300 and 1 differ in the byte
    // that comes first in memory.
    ASSERT_TRUE(journal->Write({PutJob{RecordOf("job", 1)}}).ok());
    ASSERT_TRUE(journal->Write({PutCheckpoint{kJob, EntryOf("job", 300, 1)}}).ok());
    ASSERT_TRUE(journal
                    ->Write({PutCheckpoint{kJob, EntryOf("job", 1, 2)},
                             PutCheckpoint{kJob, EntryOf("job", 200, 2)},
                             PutJob{RecordOf("other", 7)}, PutJob{RecordOf("job", 2)}})
                    .ok());
  }
  const auto journal = OpenJournal();
  ASSERT_NE(journal, nullptr);
  // Places go on after those of before.
  ASSERT_TRUE(journal->Write({PutCheckpoint{kJob, EntryOf("job", 100, 3)}}).ok());
  CheckpointEntry announced = EntryOf("job", 300, 1);
  announced.state = CheckpointState::kAnnounced;
  announced.manifest_digest = 5;
  ASSERT_TRUE(journal->Write({PutCheckpoint{kJob, announced}}).ok()) << "keeps its place";

  const Result<std::vector<StoredJob>> jobs = journal->LoadAll();
  ASSERT_TRUE(jobs.ok()) << jobs.status().ToString();
  ASSERT_EQ(jobs->size(), 2U);
  EXPECT_EQ((*jobs)[0].record, RecordOf("job", 2));
  EXPECT_EQ(StepsOf((*jobs)[0].checkpoints), (Steps{300, 1, 200, 100}));
  EXPECT_EQ((*jobs)[0].checkpoints[0], announced);
  EXPECT_EQ((*jobs)[1].record, RecordOf("other", 7));
  EXPECT_TRUE((*jobs)[1].checkpoints.empty());
}

TEST_F(JournalTest, DroppedCheckpointsAreGoneAndComeBackAtTheEnd) {
  const auto journal = OpenJournal();
  ASSERT_NE(journal, nullptr);
  ASSERT_TRUE(journal
                  ->Write({PutCheckpoint{kJob, EntryOf("job", 1, 1)},
                           PutCheckpoint{kJob, EntryOf("job", 2, 1)},
                           PutCheckpoint{kJob, EntryOf("job", 3, 1)}})
                  .ok());
  ASSERT_TRUE(
      journal->Write({DropCheckpoint{kJob, KeyAt(1, 1)}, DropCheckpoint{kJob, KeyAt(9, 9)}}).ok());
  EXPECT_EQ(StepsOf(*journal->CheckpointsOf(kJob)), (Steps{2, 3}));
  ASSERT_TRUE(
      journal
          ->Write({DropCheckpoint{kJob, KeyAt(2, 1)}, PutCheckpoint{kJob, EntryOf("job", 2, 1)},
                   PutCheckpoint{kJob, EntryOf("job", 1, 1)}})
          .ok());
  EXPECT_EQ(StepsOf(*journal->CheckpointsOf(kJob)), (Steps{3, 2, 1}));
}

TEST_F(JournalTest, JobsWhoseNamesBeginAlikeAreApart) {
  const auto journal = OpenJournal();
  ASSERT_NE(journal, nullptr);
  for (const char* job : {"a", "aa", "a.b", "b"}) {
    ASSERT_TRUE(journal->Write({PutCheckpoint{JobName(job), EntryOf(job, 1, 1)}}).ok());
  }
  for (const char* job : {"a", "aa", "a.b", "b"}) {
    const auto entries = journal->CheckpointsOf(JobName(job));
    ASSERT_EQ(entries->size(), 1U) << job;
    EXPECT_EQ((*entries)[0].record.job, job);
  }
}

TEST_F(JournalTest, WhatCouldNotBeReadBackIsNotWritten) {
  const auto journal = OpenJournal();
  ASSERT_NE(journal, nullptr);
  JobRecord nameless = RecordOf("", 1);
  Status status = journal->Write({PutJob{RecordOf("job", 1)}, PutJob{nameless}});
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("job_record.job"), std::string::npos) << status.ToString();
  CheckpointEntry entry = EntryOf("job", 1, 1);
  entry.record.world_size = 0;
  entry.record.files.clear();
  status = journal->Write({PutCheckpoint{kJob, entry}});
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("world_size"), std::string::npos) << status.ToString();
  status = journal->Write({PutCheckpoint{JobName("another"), EntryOf("job", 1, 1)}});
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(journal->LoadAll()->empty());
  EXPECT_TRUE(journal->CheckpointsOf(kJob)->empty());
}

TEST_F(JournalTest, AnEntryThatCannotBeDecodedIsNamed) {
  {
    Result<std::unique_ptr<Database>> database = Database::Open(directory());
    ASSERT_TRUE(database.ok());
    ASSERT_TRUE(
        (*database)->Write({{Family::kJobs, "job", std::string(8, '\0') + "{\"job\":1}"}}).ok());
  }
  const auto journal = OpenJournal();
  ASSERT_NE(journal, nullptr);
  const Status status = journal->LoadAll().status();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.message().find("job_record.job: is number, must be a string"), std::string::npos)
      << status.ToString();
}

// A list of tensors, and entries and jobs that have it.
std::vector<TensorSpec> LayoutOf(std::size_t tensors, const std::string& prefix = "layer") {
  std::vector<TensorSpec> layout;
  for (std::size_t i = 0; i < tensors; ++i) {
    layout.push_back({prefix + std::to_string(i), DType::kFloat32, {1 << 20, 8}, 0});
  }
  return layout;
}

CheckpointEntry LargeEntry(std::int64_t step, const std::vector<TensorSpec>& layout,
                           std::int32_t ranks) {
  CheckpointEntry entry = EntryOf("job", step, 1);
  entry.record.world_size = ranks;
  entry.record.tensors = layout;
  entry.record.files.clear();
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    entry.record.files.push_back({"r" + std::to_string(rank), 1 << 30, 7, Rank(rank)});
  }
  return entry;
}

JobRecord JobWith(const std::vector<TensorSpec>& layout, const std::string& job = "job") {
  JobRecord record = RecordOf(job, 1);
  record.spec.tensors = layout;
  return record;
}

// What is stored of layouts, by key.
std::vector<std::pair<std::string, std::string>> StoredLayouts(const std::string& directory) {
  const auto database = Database::Open(directory);
  EXPECT_TRUE(database.ok());
  return *(*database)->Scan(Family::kMeta, "layout/");
}

TEST_F(JournalTest, ALayoutIsStoredOnceAndGoesWithTheLastRecordThatHasIt) {
  const std::vector<TensorSpec> first = LayoutOf(3);
  const std::vector<TensorSpec> second = LayoutOf(3, "other");
  {
    const auto journal = OpenJournal();
    ASSERT_TRUE(journal
                    ->Write({PutJob{JobWith(first)}, PutCheckpoint{kJob, LargeEntry(1, first, 2)},
                             PutCheckpoint{kJob, LargeEntry(2, first, 2)}})
                    .ok());
  }
  ASSERT_EQ(StoredLayouts(directory()).size(), 1U);
  {
    const auto journal = OpenJournal();
    ASSERT_TRUE(journal->Write({PutJob{JobWith(second)}}).ok());
    ASSERT_TRUE(journal->Write({DropCheckpoint{kJob, KeyAt(1, 1)}}).ok());
    const auto jobs = journal->LoadAll();
    ASSERT_TRUE(jobs.ok()) << jobs.status().ToString();
    EXPECT_EQ((*jobs)[0].record, JobWith(second));
    EXPECT_EQ((*jobs)[0].checkpoints, (std::vector{LargeEntry(2, first, 2)}));
  }
  ASSERT_EQ(StoredLayouts(directory()).size(), 2U);
  {
    const auto journal = OpenJournal();
    ASSERT_TRUE(
        journal->Write({DropCheckpoint{kJob, KeyAt(2, 1)}, DropCheckpoint{kJob, KeyAt(2, 1)}})
            .ok());
    // One that comes back in the batch in which it goes stays.
    ASSERT_TRUE(journal
                    ->Write({PutJob{JobWith({})}, PutJob{JobWith(second)},
                             PutCheckpoint{kJob, LargeEntry(3, second, 1)}})
                    .ok());
    EXPECT_EQ(*journal->CheckpointsOf(kJob), (std::vector{LargeEntry(3, second, 1)}));
  }
  EXPECT_EQ(StoredLayouts(directory()).size(), 1U) << "the empty one is gone too";
}

TEST_F(JournalTest, ALayoutWhoseRemovalMayHaveHappenedIsWrittenAgain) {
  Layouts layouts;
  std::vector<KeyChange> changes;
  const LayoutId id = *layouts.Refer(LayoutOf(2));
  layouts.AppendChanges(&changes);
  ASSERT_EQ(changes.size(), 1U);
  const KeyChange written = changes[0];
  EXPECT_TRUE(written.value.has_value());

  Layouts removal = layouts;
  removal.Release(id);
  changes.clear();
  removal.AppendChanges(&changes);
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].key, written.key);
  EXPECT_FALSE(changes[0].value.has_value());
  // That write failed, so it still counts as stored, but nothing new relies on it.
  layouts.Doubt(removal);
  for (const std::size_t expected : {1U, 0U}) {
    changes.clear();
    EXPECT_EQ(*layouts.Refer(LayoutOf(2)), id);
    layouts.AppendChanges(&changes);
    ASSERT_EQ(changes.size(), expected);
    for (const KeyChange& again : changes) EXPECT_EQ(again.value, written.value);
  }
}

TEST_F(JournalTest, AnUnchangedLayoutAndAnOldFileListAreNotWrittenAgain) {
  constexpr std::int32_t kRanks = 1000;
  const std::vector<TensorSpec> layout = LayoutOf(5000);
  const auto journal = OpenJournal();
  ASSERT_TRUE(journal->Write({PutJob{JobWith(layout)}}).ok());
  const auto cost = [&](const Batch& batch) {
    const std::int64_t before = journal->bytes_written();
    EXPECT_TRUE(journal->Write(batch).ok());
    return journal->bytes_written() - before;
  };
  EXPECT_LE(cost({PutCheckpoint{kJob, LargeEntry(1, layout, kRanks)}}), 200 * kRanks);
  CheckpointEntry announced = LargeEntry(1, layout, kRanks);
  announced.state = CheckpointState::kAnnounced;
  announced.manifest_digest = 5;
  announced.strikes = 1;
  EXPECT_LE(cost({PutCheckpoint{kJob, announced}}), 600);
  EXPECT_LE(cost({PutJob{JobWith(layout)}}), 2000);
  EXPECT_EQ(*journal->CheckpointsOf(kJob), (std::vector{announced}));
  EXPECT_LE(cost({DropCheckpoint{kJob, KeyAt(1, 1)}}), 200);
}

TEST_F(JournalTest, AMissingOrDamagedLayoutOrFileListIsNamed) {
  {
    const auto journal = OpenJournal();
    ASSERT_TRUE(journal->Write({PutCheckpoint{kJob, LargeEntry(1, LayoutOf(2), 2)}}).ok());
  }
  const auto [key, text] = StoredLayouts(directory()).at(0);
  const auto expect_loss = [&](const std::vector<KeyChange>& damage, const std::string& words) {
    ASSERT_TRUE((*Database::Open(directory()))->Write(damage).ok());
    const Status status = OpenJournal()->CheckpointsOf(kJob).status();
    EXPECT_EQ(status.code(), Code::kDataLoss);
    EXPECT_NE(status.message().find(words), std::string::npos) << status.ToString();
  };
  const std::string name = "layout " + key.substr(key.find('/') + 1);
  expect_loss({{Family::kMeta, key, std::nullopt}}, name + " is missing");
  expect_loss({{Family::kMeta, key, text + " "}}, name + " has digest ");
  const auto files = (*Database::Open(directory()))->Scan(Family::kCheckpoints, "f");
  ASSERT_EQ(files->size(), 1U);
  expect_loss({{Family::kMeta, key, text}, {Family::kCheckpoints, (*files)[0].first, "{}"}},
              "the file list of checkpoint s000000000001-g00000001 is another one");
  expect_loss({{Family::kCheckpoints, (*files)[0].first, std::nullopt}},
              "the file list of checkpoint s000000000001-g00000001 is missing");
}

TEST_F(JournalTest, TheIndexKeepsItsContract) {
  const auto journal = OpenJournal();
  ASSERT_NE(journal, nullptr);
  JournalIndex index(journal.get());
  EXPECT_EQ(index.Get(kJob, KeyAt(5, 1)).status().code(), Code::kNotFound);
  EXPECT_EQ(checkpoint::SetState(index, kJob, KeyAt(5, 1), CheckpointState::kVoid).code(),
            Code::kNotFound);
  ASSERT_TRUE(index.Put(EntryOf("job", 5, 1)).ok());
  ASSERT_TRUE(index.Put(EntryOf("job", 3, 2)).ok());
  ASSERT_TRUE(checkpoint::Announce(index, kJob, KeyAt(5, 1), 0x77).ok());
  EXPECT_EQ(*checkpoint::AddStrike(index, kJob, KeyAt(5, 1)), 1);
  EXPECT_EQ(*checkpoint::AddStrike(index, kJob, KeyAt(5, 1)), 2);

  CheckpointEntry other = EntryOf("job", 5, 1);
  other.record.files[0].header_digest = 8;
  EXPECT_EQ(index.Put(other).code(), Code::kAlreadyExists);

  const Result<CheckpointEntry> entry = index.Get(kJob, KeyAt(5, 1));
  ASSERT_TRUE(entry.ok());
  EXPECT_EQ(entry->record, EntryOf("job", 5, 1).record);
  EXPECT_EQ(entry->state, CheckpointState::kAnnounced);
  EXPECT_EQ(entry->manifest_digest, 0x77U);
  EXPECT_EQ(entry->strikes, 2);
  EXPECT_EQ(StepsOf(*index.List(kJob)), (Steps{5, 3}));

  ASSERT_TRUE(index.Remove(kJob, KeyAt(5, 1)).ok());
  ASSERT_TRUE(index.Remove(kJob, KeyAt(5, 1)).ok());
  EXPECT_EQ(StepsOf(*index.List(kJob)), (Steps{3}));
  EXPECT_TRUE(index.List(JobName("unknown"))->empty());
}

// Every acknowledged batch is there after SIGKILL, whole, and in order; the test program itself is
// the process that dies.
TEST_F(JournalTest, SurvivesSigkillInTheMiddleOfWriting) {
  std::int64_t there_before = 0;
  for (const std::int64_t kill_at : {1, 50, 333}) {
    std::int64_t acknowledged = 0;
    {
      Child writer("--write", directory());
      while (acknowledged < kill_at) {
        const std::int64_t number = writer.NextNumber();
        ASSERT_GE(number, 0) << "the child ended by itself";
        acknowledged = number;
      }
      writer.Kill();
      // What it acknowledged before it died.
      for (std::int64_t number = 0; number >= 0; number = writer.NextNumber()) {
        acknowledged = std::max(acknowledged, number);
      }
    }
    const auto journal = OpenJournal();
    ASSERT_NE(journal, nullptr);
    const Result<std::vector<StoredJob>> jobs = journal->LoadAll();
    ASSERT_TRUE(jobs.ok()) << jobs.status().ToString();
    ASSERT_EQ(jobs->size(), 1U);
    const std::int64_t committed = (*jobs)[0].record.committed.value();
    EXPECT_GE(committed, acknowledged);
    EXPECT_EQ((*jobs)[0].record, RecordOf("job", committed));
    // The checkpoint of each batch is there, and none of a batch whose record is not.
    Steps expected;
    for (std::int64_t step = 1; step <= std::max(committed, there_before); ++step) {
      expected.push_back(step);
    }
    EXPECT_EQ(StepsOf((*jobs)[0].checkpoints), expected);
    there_before = static_cast<std::int64_t>((*jobs)[0].checkpoints.size());
  }
}

}  // namespace
}  // namespace muster::store
