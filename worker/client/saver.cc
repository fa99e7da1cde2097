#include "worker/client/saver.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <new>
#include <span>
#include <utility>

#include "checkpoint/reshard.h"
#include "checkpoint/retention.h"
#include "checkpoint/sweep.h"
#include "worker/client/signals_blocked.h"

namespace muster::worker {

Result<Snapshot> TakeSnapshot(const StateTable& table, checkpoint::ShardPlan plan) {
  Snapshot snapshot;
  for (const TensorSlot* slot : table.Stored()) {
    const Box stored = StoredBoxOf(slot->spec, plan.rank.value(), plan.world_size);
    const std::int64_t bytes = stored.count() * SizeOf(slot->spec.dtype);
    const bool sharded = slot->kind == TensorKind::kSharded;
    try {
      snapshot.parts.emplace_back(static_cast<std::size_t>(bytes));
    } catch (const std::bad_alloc&) {
      return ResourceExhausted(
          fmt::format("no memory to copy {} bytes of tensor '{}'", bytes, slot->spec.name));
    }
    if (bytes == 0) continue;
    checkpoint::CopyBox(sharded ? slot->box : Box::Whole(slot->spec.shape),
                        sharded ? slot->held.span() : slot->memory, stored,
                        snapshot.parts.back().span(), stored, SizeOf(slot->spec.dtype));
  }
  snapshot.plan = std::move(plan);
  return snapshot;
}

Saver::Saver(std::unique_ptr<checkpoint::FileSystem> fs, std::string root, OnDone done)
    : fs_(std::move(fs)),
      root_(std::move(root)),
      done_(std::move(done)),
      thread_([this] { Run(); }) {}

Saver::~Saver() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool Saver::busy() const {
  const std::lock_guard lock(mutex_);
  return snapshots_ > 0;
}

bool Saver::AwaitIdle(Duration limit) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::nanoseconds(limit.nanos()),
                           [this] { return snapshots_ == 0; });
}

void Saver::Save(Snapshot snapshot) { Enqueue(std::move(snapshot)); }
void Saver::Write(WriteManifest request) { Enqueue(std::move(request)); }
void Saver::Remove(RemoveCheckpoint request) { Enqueue(std::move(request)); }
void Saver::Sweep(SweepCheckpoints request) { Enqueue(std::move(request)); }

void Saver::Enqueue(Job job) {
  {
    const std::lock_guard lock(mutex_);
    if (std::holds_alternative<Snapshot>(job)) ++snapshots_;
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void Saver::Run() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    const Job job = std::move(jobs_.front());
    jobs_.erase(jobs_.begin());
    lock.unlock();
    std::optional<Message> answer = std::visit([this](const auto& one) { return Do(one); }, job);
    if (std::holds_alternative<Snapshot>(job)) {
      lock.lock();
      --snapshots_;
      lock.unlock();
      changed_.notify_all();
    }
    if (answer) done_(std::move(*answer));
  }
}

std::optional<Message> Saver::Do(const Snapshot& snapshot) {
  std::vector<checkpoint::TensorBytes> bytes;
  for (const AlignedBytes& part : snapshot.parts) bytes.emplace_back(part.span());
  const checkpoint::ShardPlan& plan = snapshot.plan;
  Result<FileRecord> file = checkpoint::WriteShard(*fs_, root_, plan, bytes);
  if (!file.ok()) {
    return ShardFailed{plan.key, plan.rank, file.status().code(), file.status().message()};
  }
  return ShardWritten{plan.key, plan.lineage, plan.world_size, *file};
}

std::optional<Message> Saver::Do(const WriteManifest& request) {
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

std::optional<Message> Saver::Do(const RemoveCheckpoint& request) {
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

std::optional<Message> Saver::Do(const SweepCheckpoints& request) {
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

}  // namespace muster::worker
