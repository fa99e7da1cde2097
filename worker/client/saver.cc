#include "worker/client/saver.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "checkpoint/aligned_buffer.h"
#include "checkpoint/io_pool.h"
#include "checkpoint/retention.h"
#include "checkpoint/sweep.h"
#include "worker/client/snapshot.h"
#include "worker/collective/signals_blocked.h"

namespace muster::worker {
namespace {

struct Snapshot {
  checkpoint::ShardPlan plan;
  checkpoint::AlignedBuffer data;
  std::shared_ptr<Fence> ready;  // behind the copies into `data`; null: they are done
};

// How often the device is asked whether a copy has arrived.
constexpr std::chrono::microseconds kFencePause{500};

}  // namespace

class Saver::Work {
 public:
  Work(std::unique_ptr<checkpoint::FileSystem> fs, std::string root, OnDone done)
      : fs_(std::move(fs)), root_(std::move(root)), done_(std::move(done)) {}

  // The thread.
  void Run();
  // Ends the thread soon; false when it is still there after `patience`, and then it is mute.
  bool Stop(Duration patience);
  // Does the thread wait for a device to copy a snapshot?
  [[nodiscard]] bool awaits_device();

  void Prepare(std::int64_t bytes, checkpoint::BufferMemory memory);
  Status Save(const StateTable& table, checkpoint::ShardPlan plan);
  bool AwaitIdle(Duration limit);
  [[nodiscard]] std::int64_t skipped();

  using Job = std::variant<Snapshot, WriteManifest, RemoveCheckpoint, SweepCheckpoints>;
  void Enqueue(Job job);

 private:
  [[nodiscard]] std::optional<Message> Do(Snapshot& snapshot);
  [[nodiscard]] std::optional<Message> Do(const WriteManifest& request);
  [[nodiscard]] std::optional<Message> Do(const RemoveCheckpoint& request);
  [[nodiscard]] std::optional<Message> Do(const SweepCheckpoints& request);
  // Until the copies from a device are in `snapshot.data`.
  [[nodiscard]] Status AwaitCopies(const Snapshot& snapshot);
  void GetMemory(std::unique_lock<std::mutex>& lock);
  void EndSave(checkpoint::AlignedBuffer buffer);
  void Answer(Message message);
  bool WaitFor(std::unique_lock<std::mutex>& lock, Duration limit, const bool& flag, bool value) {
    return changed_.wait_for(lock, std::chrono::nanoseconds(limit.nanos()),
                             [&flag, value] { return flag == value; });
  }

  const std::unique_ptr<checkpoint::FileSystem> fs_;
  const std::string root_;
  checkpoint::IoPool pool_;
  std::atomic<bool> stopping_ = false;
  std::vector<std::string> probes_;  // that the last sweep saw; of the thread alone

  std::mutex answering_;  // held while done_ is called
  OnDone done_;           // guarded by answering_

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool saving_ = false;  // from the start of a snapshot until its file is done
  bool awaits_device_ = false;
  std::int64_t skipped_ = 0;
  std::int64_t prepare_bytes_ = 0;  // 0: nothing to prepare
  checkpoint::BufferMemory prepare_memory_;
  bool preparing_ = false;
  checkpoint::AlignedBuffer buffer_;  // empty while a save or a preparation has it
  bool ended_ = false;
};

void Saver::Work::Prepare(std::int64_t bytes, checkpoint::BufferMemory memory) {
  {
    const std::lock_guard lock(mutex_);
    prepare_memory_ = std::move(memory);
    prepare_bytes_ = bytes;
  }
  changed_.notify_all();
}

Status Saver::Work::Save(const StateTable& table, checkpoint::ShardPlan plan) {
  Snapshot snapshot;
  {
    std::unique_lock lock(mutex_);
    if (saving_) {
      ++skipped_;
      return ResourceExhausted(
          fmt::format("busy: the checkpoint before is still being {} ({} skipped so far)",
                      awaits_device_ ? "copied from the device" : "written", skipped_));
    }
    saving_ = true;
    changed_.wait(lock, [this] { return !preparing_; });
    snapshot.data = std::move(buffer_);
  }
  const Status taken = TakeSnapshot(table, plan, pool_, &snapshot.data, &snapshot.ready);
  if (!taken.ok()) {
    EndSave(std::move(snapshot.data));
    return taken;
  }
  snapshot.plan = std::move(plan);
  Enqueue(std::move(snapshot));
  return {};
}

void Saver::Work::EndSave(checkpoint::AlignedBuffer buffer) {
  {
    const std::lock_guard lock(mutex_);
    buffer_ = std::move(buffer);
    saving_ = false;
  }
  changed_.notify_all();
}

bool Saver::Work::AwaitIdle(Duration limit) {
  std::unique_lock lock(mutex_);
  return WaitFor(lock, limit, saving_, false);
}

std::int64_t Saver::Work::skipped() {
  const std::lock_guard lock(mutex_);
  return skipped_;
}

void Saver::Work::Enqueue(Job job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void Saver::Work::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (!jobs_.empty()) {
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      std::optional<Message> answer = std::visit([this](auto& one) { return Do(one); }, job);
      if (answer) Answer(*std::move(answer));
      lock.lock();
    } else if (prepare_bytes_ > 0 && !saving_) {
      GetMemory(lock);
    } else {
      changed_.wait(lock);
    }
  }
  ended_ = true;
  changed_.notify_all();
}

// Lack of memory is for the save to report.
void Saver::Work::GetMemory(std::unique_lock<std::mutex>& lock) {
  const std::int64_t bytes = std::exchange(prepare_bytes_, 0);
  const checkpoint::BufferMemory memory = std::exchange(prepare_memory_, nullptr);
  checkpoint::AlignedBuffer buffer = std::move(buffer_);
  preparing_ = true;
  lock.unlock();
  static_cast<void>(MakeRoom(bytes, memory, &buffer));
  lock.lock();
  buffer_ = std::move(buffer);
  preparing_ = false;
  changed_.notify_all();
}

void Saver::Work::Answer(Message message) {
  const std::lock_guard lock(answering_);
  if (done_) done_(std::move(message));
}

bool Saver::Work::Stop(Duration patience) {
  {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    if (WaitFor(lock, patience, ended_, true)) return true;
  }
  const std::lock_guard lock(answering_);
  done_ = nullptr;
  return false;
}

// By asking, for nothing is waited for inside the driver. Not given up at the end: as long as the
// device writes to the memory it must stay, and a thread that waits for ever is left behind.
Status Saver::Work::AwaitCopies(const Snapshot& snapshot) {
  if (snapshot.ready == nullptr) return {};
  Result<bool> passed = false;
  std::unique_lock lock(mutex_);
  awaits_device_ = true;
  for (;;) {
    lock.unlock();
    passed = snapshot.ready->Passed();
    lock.lock();
    if (!passed.ok() || *passed) break;
    changed_.wait_for(lock, kFencePause);
  }
  awaits_device_ = false;
  return passed.status();
}

bool Saver::Work::awaits_device() {
  const std::lock_guard lock(mutex_);
  return awaits_device_;
}

std::optional<Message> Saver::Work::Do(Snapshot& snapshot) {
  const checkpoint::ShardPlan& plan = snapshot.plan;
  const Status arrived = AwaitCopies(snapshot);
  Result<FileRecord> file =
      arrived.ok() ? checkpoint::WriteShard(*fs_, root_, plan, snapshot.data, pool_, &stopping_)
                   : Result<FileRecord>(arrived);
  EndSave(std::move(snapshot.data));
  if (!file.ok()) {
    return ShardFailed{plan.key, plan.rank, file.status().code(), file.status().message()};
  }
  return ShardWritten{plan.key, plan.lineage, plan.world_size, *file};
}

std::optional<Message> Saver::Work::Do(const WriteManifest& request) {
  ManifestWritten answer;
  answer.key = request.record.key;
  Result<std::uint64_t> digest = checkpoint::WriteManifest(*fs_, root_, request.record);
  if (digest.ok()) {
    answer.digest = *digest;
  } else {
    answer.code = digest.status().code();
    answer.reason = digest.status().message();
  }
  return answer;
}

std::optional<Message> Saver::Work::Do(const RemoveCheckpoint& request) {
  const Status status = checkpoint::RemoveCheckpoint(*fs_, root_, request.directory);
  const bool pinned = status.code() == Code::kFailedPrecondition;
  if (!status.ok() && !pinned) {
    // The coordinator asks again later; the files only take up room until then.
    std::fprintf(stderr, "muster: cannot remove checkpoint %s: %s\n", request.directory.c_str(),
                 status.message().c_str());
    return std::nullopt;
  }
  return CheckpointRemoved{request.key, pinned};
}

std::optional<Message> Saver::Work::Do(const SweepCheckpoints& request) {
  Result<checkpoint::SweepReport> report = checkpoint::SweepLeftovers(
      *fs_, root_, {request.generation, request.step, request.known, probes_});
  if (!report.ok()) {
    // The next sweep tries again; the files only take up room until then.
    std::fprintf(stderr, "muster: cannot remove all leftovers in %s: %s\n", root_.c_str(),
                 report.status().message().c_str());
    return std::nullopt;
  }
  probes_ = std::move(report->probes);
  if (report->files > 0 || report->directories > 0) {
    std::fprintf(stderr, "muster: removed %lld files and %lld directories of dead saves in %s\n",
                 static_cast<long long>(report->files), static_cast<long long>(report->directories),
                 root_.c_str());
  }
  return std::nullopt;
}

Saver::Saver(std::unique_ptr<checkpoint::FileSystem> fs, std::string root, OnDone done,
             Duration patience)
    : work_([&] {
        const SignalsBlocked blocked;  // for the threads of the pool
        return std::make_shared<Work>(std::move(fs), root, std::move(done));
      }()),
      root_(std::move(root)),
      patience_(patience) {
  const SignalsBlocked blocked;
  thread_ = std::thread([work = work_] { work->Run(); });
}

Saver::~Saver() {
  if (work_->Stop(patience_)) {
    thread_.join();
    return;
  }
  const auto seconds = static_cast<long long>(patience_.millis() / 1000);
  if (work_->awaits_device()) {
    std::fprintf(stderr,
                 "muster: the device has not copied the last checkpoint's snapshot within another "
                 "%lld s: it hangs, and that checkpoint is given up\n",
                 seconds);
  } else {
    std::fprintf(stderr,
                 "muster: checkpoint directory %s has not answered for %lld s: what was being "
                 "written there is given up\n",
                 root_.c_str(), seconds);
  }
  thread_.detach();
}

void Saver::Prepare(std::int64_t bytes, checkpoint::BufferMemory memory) {
  work_->Prepare(bytes, std::move(memory));
}
Status Saver::Save(const StateTable& table, checkpoint::ShardPlan plan) {
  return work_->Save(table, std::move(plan));
}
bool Saver::AwaitIdle(Duration limit) const { return work_->AwaitIdle(limit); }
std::int64_t Saver::skipped() const { return work_->skipped(); }
void Saver::Write(WriteManifest request) { work_->Enqueue(std::move(request)); }
void Saver::Remove(RemoveCheckpoint request) { work_->Enqueue(std::move(request)); }
void Saver::Sweep(SweepCheckpoints request) { work_->Enqueue(std::move(request)); }

}  // namespace muster::worker
