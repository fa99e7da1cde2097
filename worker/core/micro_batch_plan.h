// Which samples a step consumes and who computes them. All of it is a pure function of the job's
// spec and of step, rank and world size, so nothing about the data is stored, and the position in
// the data cannot drift from the committed step.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/box.h"
#include "protocol/ids.h"
#include "protocol/records.h"

namespace muster::worker {

// A permutation of [0, size) for one epoch, computed on the fly: a Feistel network over the next
// even power of two, walked along its cycle until it falls into the range (fewer than four rounds
// on average). The same on every machine.
class SampleOrder {
 public:
  // REQUIRES: size > 0
  SampleOrder(std::uint64_t seed, std::int64_t epoch, std::int64_t size);
  // The sample at `position`. REQUIRES: 0 <= position < size
  [[nodiscard]] std::int64_t At(std::int64_t position) const;

 private:
  static constexpr int kRounds = 6;
  [[nodiscard]] std::uint64_t Encrypt(std::uint64_t value) const;
  std::uint64_t size_;
  int half_bits_;
  std::uint64_t keys_[kRounds];
};

// What one step consumes.
struct StepBatch {
  std::int64_t epoch = 0;
  Range positions;                 // in the order of the epoch
  std::int32_t micro_batches = 0;  // 1 to JobSpec::micro_batches; fewer in a short last batch
};

// The batch of `step` (from 1). The last batch of an epoch is shorter when the global batch does
// not divide the samples. REQUIRES: samples, global_batch and micro_batches of the spec are
// positive.
[[nodiscard]] StepBatch BatchOf(const JobSpec& spec, Step step);
// The positions of one micro-batch: even parts of the batch, larger ones first.
[[nodiscard]] Range PositionsOf(const StepBatch& batch, std::int32_t micro_batch);
// The contiguous range of micro-batches that `rank` computes; may be empty.
[[nodiscard]] Range DealTo(const StepBatch& batch, Rank rank, std::int32_t world_size);
// For what is drawn at random within a micro-batch.
[[nodiscard]] std::uint64_t SeedOf(const JobSpec& spec, Step step, std::int32_t micro_batch);

}  // namespace muster::worker
