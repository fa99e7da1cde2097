#include "worker/core/micro_batch_plan.h"

#include <algorithm>
#include <bit>

#include "protocol/check.h"
#include "protocol/mutants.h"
#include "protocol/prng.h"

namespace muster::worker {

SampleOrder::SampleOrder(std::uint64_t seed, std::int64_t epoch, std::int64_t size)
    : size_(static_cast<std::uint64_t>(size)) {
  MUSTER_CHECK(size > 0, "an epoch has at least one sample");
  half_bits_ = std::max(1, static_cast<int>(std::bit_width(size_ - 1) + 1) / 2);
  Prng prng(Mix64(seed ^ Mix64(static_cast<std::uint64_t>(epoch))));
  for (std::uint64_t& key : keys_) key = prng.Next();
}

std::uint64_t SampleOrder::Encrypt(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (const std::uint64_t key : keys_) {
    const std::uint64_t next = left ^ (Mix64(right ^ key) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

std::int64_t SampleOrder::At(std::int64_t position) const {
  auto value = static_cast<std::uint64_t>(position);
  MUSTER_CHECK(position >= 0 && value < size_, "a position outside of the epoch");
  // The network permutes a range up to four times as large; the cycle of a value that lies in the
  // smaller range comes back to it.
  do {
    value = Encrypt(value);
  } while (value >= size_);
  return static_cast<std::int64_t>(value);
}

StepBatch BatchOf(const JobSpec& spec, Step step) {
  MUSTER_CHECK(step.value() >= 1, "steps count from 1");
  MUSTER_CHECK(spec.samples > 0 && spec.global_batch > 0 && spec.micro_batches > 0,
               "a spec that was not validated");
  const std::int64_t per_epoch = (spec.samples - 1) / spec.global_batch + 1;
  const std::int64_t index = step.value() - 1;
  StepBatch batch;
  batch.epoch = index / per_epoch;
  batch.positions.lo = (index % per_epoch) * spec.global_batch;
  batch.positions.hi =
      batch.positions.lo + std::min(spec.global_batch, spec.samples - batch.positions.lo);
  // Micro-batches keep their size in a short batch, so that no worker needs another shape of input
  // than usual; there are just fewer of them.
  const std::int64_t size = (spec.global_batch - 1) / spec.micro_batches + 1;
  const std::int64_t wanted = (batch.positions.size() - 1) / size + 1;
  batch.micro_batches =
      batch.positions.size() == spec.global_batch
          ? static_cast<std::int32_t>(std::min<std::int64_t>(spec.micro_batches, spec.global_batch))
          : static_cast<std::int32_t>(wanted);
  return batch;
}

Range PositionsOf(const StepBatch& batch, std::int32_t micro_batch) {
  const Range part = EvenCut(batch.positions.size(), micro_batch, batch.micro_batches);
  return Range{batch.positions.lo + part.lo, batch.positions.lo + part.hi};
}

Range DealTo(const StepBatch& batch, Rank rank, std::int32_t world_size) {
  const std::int32_t world = Planted(Mutant::kRangesOfOldWorld) ? world_size + 1 : world_size;
  return EvenCut(batch.micro_batches, rank.value(), world);
}

std::uint64_t SeedOf(const JobSpec& spec, Step step, std::int32_t micro_batch) {
  const std::uint64_t of_step = Mix64(spec.seed ^ Mix64(static_cast<std::uint64_t>(step.value())));
  return Mix64(of_step ^ static_cast<std::uint64_t>(micro_batch));
}

}  // namespace muster::worker
