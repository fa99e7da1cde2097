#include "coordinator/store/store_writer.h"

#include <fmt/format.h>

#include <utility>

namespace muster::store {

StoreWriter::StoreWriter(std::unique_ptr<Journal> journal, std::size_t max_queued)
    : max_queued_(max_queued), journal_(std::move(journal)), thread_([this] { Run(); }) {}

StoreWriter::~StoreWriter() { Stop(); }

Status StoreWriter::Enqueue(Batch batch, Callback callback) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return FailedPrecondition("the store is closed: nothing can be written any more");
  if (queue_.size() >= max_queued_) {
    return ResourceExhausted(fmt::format(
        "{} batches wait to be written: the disk of the data directory is too slow", max_queued_));
  }
  queue_.push_back({std::move(batch), std::move(callback)});
  changed_.notify_one();
  return {};
}

void StoreWriter::Resume() {
  const std::lock_guard lock(mutex_);
  failure_ = Status();
}

void StoreWriter::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_one();
  }
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
  journal_.reset();
}

StoreWriter::Stats StoreWriter::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.queued = queue_.size();
  return stats;
}

Status StoreWriter::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void StoreWriter::Run() {
  while (true) {
    std::deque<Entry> group;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      group.swap(queue_);
    }
    Process(std::move(group));
  }
}

Status StoreWriter::Write(const std::vector<const Batch*>& batches) {
  if (Status earlier = failure(); !earlier.ok()) return earlier;
  Status status = journal_->Write(batches);
  const std::lock_guard lock(mutex_);
  stats_.reopenings = journal_->reopenings();
  if (status.ok()) {
    ++stats_.groups;
    stats_.batches += static_cast<std::int64_t>(batches.size());
  } else if (batches.size() == 1 || status.code() != Code::kInvalidArgument) {
    ++stats_.failures;
    failure_ = status;
  }
  return status;
}

void StoreWriter::Process(std::deque<Entry> group) {
  std::vector<const Batch*> batches;
  for (const Entry& entry : group) batches.push_back(&entry.batch);
  const Status status = Write(batches);
  // One batch that could not be read back makes the whole group fail, unwritten: then each goes
  // alone, so that those before it are not lost for it.
  const bool alone = status.code() == Code::kInvalidArgument && group.size() > 1;
  for (Entry& entry : group) {
    entry.callback(alone ? Write({&entry.batch}) : status);
  }
}

}  // namespace muster::store
