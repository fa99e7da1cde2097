#include "tests/bench/commit_path.h"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "coordinator/core/checkpoint_tracker.h"
#include "coordinator/store/journal.h"
#include "protocol/codec.h"

namespace muster::bench {
namespace {

using coordinator::CheckpointTracker;
using coordinator::Effects;
using Clock = std::chrono::steady_clock;

double MillisSince(Clock::time_point begun) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
}

JobRecord JobOf(std::int32_t ranks, std::int32_t tensors) {
  JobRecord record;
  record.job = JobName("bench");
  record.lineage = Lineage(1);
  record.spec.max_workers = ranks;
  for (std::int32_t i = 0; i < tensors; ++i) {
    record.spec.tensors.push_back({fmt::format("model.layers.{}.attention.weight", i),
                                   DType::kFloat32,
                                   {4096, 4096},
                                   i % 2 == 0 ? 0 : -1});
  }
  GenerationRecord& started = record.started.emplace();
  started.generation = Generation(1);
  started.lineage = record.lineage;
  for (std::int32_t r = 0; r < ranks; ++r) {
    started.members.push_back({{WorkerId(fmt::format("w{}", r)), Incarnation(1)},
                               Rank(r),
                               NodeName("n"),
                               fmt::format("10.0.0.1:{}", r),
                               Rank(-1)});
  }
  return record;
}

// A job with a tracker and a journal of its own.
class Path {
 public:
  Path(std::unique_ptr<store::Journal> journal, JobRecord record)
      : journal_(std::move(journal)), record_(std::move(record)) {}

  Status Begin() { return journal_->Write({store::PutJob{record_}}); }

  // One save from its first report until it is announced.
  Result<CommitCost> Save(std::int64_t step) {
    CommitCost cost;
    const std::int32_t ranks = record_.started->world_size();
    auto begun = Clock::now();
    for (std::int32_t r = 0; r + 1 < ranks; ++r) Report(step, r);
    cost.shards_ms = MillisSince(begun);

    std::int64_t bytes = journal_->bytes_written();
    begun = Clock::now();
    if (!Report(step, ranks - 1).completed) return Internal("the save is not complete");
    MUSTER_RETURN_IF_ERROR(MakeDurable());
    cost.commit_ms = MillisSince(begun);
    cost.commit_bytes = journal_->bytes_written() - std::exchange(bytes, journal_->bytes_written());

    begun = Clock::now();
    (void)tracker_.OnManifestWritten(record_, {KeyAt(step), 7, Code::kOk, ""}, std::nullopt,
                                     &effects_);
    MUSTER_RETURN_IF_ERROR(MakeDurable());
    cost.announce_ms = MillisSince(begun);
    cost.announce_bytes = journal_->bytes_written() - bytes;
    return cost;
  }

 private:
  [[nodiscard]] CheckpointKey KeyAt(std::int64_t step) const {
    return {Step(step), record_.started->generation};
  }

  CheckpointTracker::Progress Report(std::int64_t step, std::int32_t rank) {
    ShardWritten shard;
    shard.key = KeyAt(step);
    shard.lineage = record_.lineage;
    shard.world_size = record_.started->world_size();
    shard.file.name = fmt::format("r{:05}.safetensors", rank);
    shard.file.bytes = std::int64_t{1} << 30U;
    shard.file.header_digest = 0x123456789abcdef0U + static_cast<std::uint64_t>(rank);
    shard.file.rank = Rank(rank);
    return tracker_.OnShardWritten(record_, *record_.started, shard, Instant::Never(), &effects_);
  }

  Status MakeDurable() {
    store::Batch batch;
    for (coordinator::Persist& persist : effects_.persist) {
      if (auto* put = std::get_if<coordinator::PutCheckpoint>(&persist)) {
        batch.emplace_back(store::PutCheckpoint{put->job, std::move(put->entry)});
      }
    }
    effects_ = Effects();
    return journal_->Write(batch);
  }

  std::unique_ptr<store::Journal> journal_;
  JobRecord record_;
  CheckpointTracker tracker_{{}};
  Effects effects_;
};

}  // namespace

Result<CommitCost> MeasureCommit(const std::string& directory, std::int32_t ranks,
                                 std::int32_t tensors) {
  Result<std::unique_ptr<store::Journal>> journal = store::Journal::Open(directory);
  if (!journal.ok()) return journal.status();
  Path path(std::move(journal).value(), JobOf(ranks, tensors));
  MUSTER_RETURN_IF_ERROR(path.Begin());
  if (const Result<CommitCost> first = path.Save(1); !first.ok()) return first.status();
  return path.Save(2);
}

}  // namespace muster::bench
