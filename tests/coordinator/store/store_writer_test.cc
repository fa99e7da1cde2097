// The writer's thread: order, group commit, failures, end.
#include "coordinator/store/store_writer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/coordinator/store/store_support.h"

namespace muster::store {
namespace {

constexpr std::chrono::seconds kLong(60);

class StoreWriterTest : public StoreTest {
 protected:
  void SetUp() override {
    auto journal = OpenJournal();
    ASSERT_NE(journal, nullptr);
    writer_ = std::make_unique<StoreWriter>(std::move(journal));
  }

  // Makes the writer's thread wait in a callback until Release().
  void Block() {
    std::promise<void> blocked;
    ASSERT_TRUE(writer_
                    ->Enqueue({PutJob{RecordOf("blocker", 1)}},
                              [&blocked, gate = gate_.get_future().share()](const Status& status) {
                                EXPECT_TRUE(status.ok()) << status.ToString();
                                blocked.set_value();
                                gate.wait();
                              })
                    .ok());
    ASSERT_EQ(blocked.get_future().wait_for(kLong), std::future_status::ready);
  }
  void Release() { gate_.set_value(); }

  // Writes and waits for the callback.
  Status WriteNow(Batch batch) {
    std::promise<Status> done;
    std::future<Status> status = done.get_future();
    const Status queued =
        writer_->Enqueue(std::move(batch), [&done](const Status& s) { done.set_value(s); });
    if (!queued.ok()) return queued;
    if (status.wait_for(kLong) != std::future_status::ready) return DeadlineExceeded("no callback");
    return status.get();
  }

  std::unique_ptr<StoreWriter> writer_;
  std::promise<void> gate_;
};

TEST_F(StoreWriterTest, WritesAndTells) {
  EXPECT_TRUE(WriteNow({PutJob{RecordOf("job", 1)}}).ok());
  EXPECT_TRUE(WriteNow({}).ok());
  writer_.reset();
  const auto journal = OpenJournal();
  ASSERT_NE(journal, nullptr);
  EXPECT_EQ(journal->LoadAll()->size(), 1U);
}

TEST_F(StoreWriterTest, BatchesThatWaitTogetherShareASync) {
  Block();
  std::vector<int> told;
  std::vector<std::thread::id> threads;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(writer_
                    ->Enqueue({PutJob{RecordOf("job", i)},
                               PutCheckpoint{JobName("job"), EntryOf("job", 1000 - i, 1)}},
                              [&, i](const Status& status) {
                                EXPECT_TRUE(status.ok()) << status.ToString();
                                told.push_back(i);
                                threads.push_back(std::this_thread::get_id());
                              })
                    .ok());
  }
  EXPECT_EQ(writer_->stats().queued, 100U);
  Release();
  writer_->Stop();
  EXPECT_EQ(writer_->stats().batches, 101);
  EXPECT_EQ(writer_->stats().groups, 2) << "the one that blocked, and all others";
  ASSERT_EQ(told.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(told[static_cast<std::size_t>(i)], i);
  for (const std::thread::id id : threads) {
    EXPECT_EQ(id, threads.front());
    EXPECT_NE(id, std::this_thread::get_id());
  }
  const auto journal = OpenJournal();
  ASSERT_NE(journal, nullptr);
  const auto jobs = journal->LoadAll();
  ASSERT_EQ(jobs->size(), 2U);
  EXPECT_EQ((*jobs)[1].record, RecordOf("job", 99)) << "the last one stands";
  const std::vector<std::int64_t> steps = StepsOf((*jobs)[1].checkpoints);
  ASSERT_EQ(steps.size(), 100U);
  EXPECT_EQ(steps.front(), 1000);
  EXPECT_EQ(steps.back(), 901);
}

TEST_F(StoreWriterTest, StopWritesWhatWaitsAndThenRefuses) {
  Block();
  int told = 0;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(
        writer_->Enqueue({PutJob{RecordOf("job", i)}}, [&](const Status&) { ++told; }).ok());
  }
  std::thread stopper([this] { writer_->Stop(); });
  Release();
  writer_->Stop();
  stopper.join();
  EXPECT_EQ(told, 5);
  const Status status =
      writer_->Enqueue({PutJob{RecordOf("late", 1)}}, [](const Status&) { FAIL(); });
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  // The lock is free again.
  EXPECT_EQ(OpenJournal()->LoadAll()->size(), 2U);
}

TEST_F(StoreWriterTest, AFullQueueRefuses) {
  writer_.reset();
  writer_ = std::make_unique<StoreWriter>(OpenJournal(), 3);
  Block();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(writer_->Enqueue({PutJob{RecordOf("job", i)}}, [](const Status&) {}).ok());
  }
  const Status status =
      writer_->Enqueue({PutJob{RecordOf("job", 3)}}, [](const Status&) { FAIL(); });
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  Release();
  writer_.reset();
  EXPECT_EQ(OpenJournal()->LoadAll()->at(1).record, RecordOf("job", 2));
}

TEST_F(StoreWriterTest, NothingIsWrittenAfterAFailureUntilResumed) {
  Block();
  std::vector<std::string> told;
  const auto enqueue = [&](Batch batch, std::promise<void>* done = nullptr) {
    ASSERT_TRUE(writer_
                    ->Enqueue(std::move(batch),
                              [&told, done](const Status& status) {
                                told.push_back(status.ok() ? "ok" : status.message());
                                if (done != nullptr) done->set_value();
                              })
                    .ok());
  };
  enqueue({PutJob{RecordOf("before", 1)}});
  enqueue({PutJob{RecordOf("not a name!", 1)}});
  std::promise<void> done;
  enqueue({PutJob{RecordOf("after", 1)}}, &done);
  Release();
  ASSERT_EQ(done.get_future().wait_for(kLong), std::future_status::ready);
  ASSERT_EQ(told.size(), 3U);
  EXPECT_EQ(told[0], "ok") << "what comes before the bad one is written";
  EXPECT_NE(told[1].find("job_record.job"), std::string::npos) << told[1];
  EXPECT_EQ(told[2], told[1]) << "what comes after it is not";
  EXPECT_EQ(WriteNow({PutJob{RecordOf("later", 1)}}).message(), told[1]);
  EXPECT_EQ(writer_->stats().failures, 1);

  writer_->Resume();
  EXPECT_TRUE(WriteNow({PutJob{RecordOf("resumed", 1)}}).ok());
  writer_.reset();
  std::vector<std::string> names;
  const auto jobs = OpenJournal()->LoadAll();
  for (const StoredJob& job : *jobs) names.push_back(job.record.job.value());
  EXPECT_EQ(names, (std::vector<std::string>{"before", "blocker", "resumed"}));
}

// A disk that takes no more, and then does: what had failed becomes durable, in order and once.
TEST_F(StoreWriterTest, WhatFailedIsWrittenOnceThereIsRoom) {
  const JobName job("job");
  CheckpointEntry large = EntryOf("job", 2, 1);
  large.record.files.clear();
  large.record.world_size = 8000;
  for (std::int32_t rank = 0; rank < large.record.world_size; ++rank) {
    large.record.files.push_back({"r" + std::to_string(rank), 100, 7, Rank(rank)});
  }
  ASSERT_TRUE(WriteNow({PutCheckpoint{job, EntryOf("job", 1, 1)}}).ok());
  const Batch replacing = {DropCheckpoint{job, EntryOf("job", 1, 1).record.key},
                           PutCheckpoint{job, large}};
  {
    const FileSizeLimit limit(256 << 10U);
    for (int attempt = 0; attempt < 3; ++attempt) {
      EXPECT_FALSE(WriteNow(replacing).ok());
      EXPECT_FALSE(WriteNow({PutJob{RecordOf("job", 3)}}).ok()) << "nothing overtakes it";
      writer_->Resume();
    }
  }
  EXPECT_TRUE(WriteNow(replacing).ok());
  EXPECT_TRUE(WriteNow({PutJob{RecordOf("job", 3)}}).ok());
  EXPECT_GE(writer_->stats().reopenings, 1);
  writer_.reset();
  const auto jobs = OpenJournal()->LoadAll();
  ASSERT_TRUE(jobs.ok()) << jobs.status().ToString();
  ASSERT_EQ(jobs->size(), 1U);
  EXPECT_EQ((*jobs)[0].record, RecordOf("job", 3));
  EXPECT_EQ((*jobs)[0].checkpoints, std::vector{large});
}

TEST_F(StoreWriterTest, ACallbackMayEnqueue) {
  std::promise<Status> done;
  ASSERT_TRUE(writer_
                  ->Enqueue({PutJob{RecordOf("first", 1)}},
                            [&](const Status&) {
                              const Status queued =
                                  writer_->Enqueue({PutJob{RecordOf("second", 1)}},
                                                   [&](const Status& s) { done.set_value(s); });
                              EXPECT_TRUE(queued.ok());
                            })
                  .ok());
  std::future<Status> second = done.get_future();
  ASSERT_EQ(second.wait_for(kLong), std::future_status::ready);
  EXPECT_TRUE(second.get().ok());
}

TEST_F(StoreWriterTest, ManyThreadsMayEnqueue) {
  std::vector<std::thread> threads;
  std::atomic<int> told = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string job = "job" + std::to_string(t);
        EXPECT_TRUE(
            writer_->Enqueue({PutJob{RecordOf(job, i)}}, [&](const Status&) { ++told; }).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  writer_->Stop();
  EXPECT_EQ(told, 200);
  const auto jobs = OpenJournal()->LoadAll();
  ASSERT_EQ(jobs->size(), 4U);
  for (const StoredJob& job : *jobs) EXPECT_EQ(job.record.committed, Step(49));
}

}  // namespace
}  // namespace muster::store
