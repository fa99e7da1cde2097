// One optimizer update of the whole job, as one worker sees it: a transaction with one outcome for
// all workers.
//
//   for (const MicroBatch& batch : step->micro_batches())
//     step->Add(batch, gradient, {.loss = loss, .weight = weight});
//   if (!step->Reduce()) continue;            // a failure: the same step comes again
//   if (step->Commit() == Outcome::kApply) …  // use step->gradient(), on every worker alike
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "protocol/ids.h"
#include "protocol/records.h"
#include "protocol/status.h"
#include "worker/collective/device.h"

namespace muster {

namespace worker {
class Runner;
}

// The unit of data and of gradient. Which samples it holds depends on the step alone, not on who
// computes it, and neither may its gradient.
class MicroBatch {
 public:
  MicroBatch(std::int32_t index, std::uint64_t seed, std::vector<std::int64_t> samples)
      : index_(index), seed_(seed), samples_(std::move(samples)) {}

  // Its place in the step's global batch, from 0.
  [[nodiscard]] std::int32_t index() const { return index_; }
  // For whatever is drawn at random while computing it (dropout, augmentation): a function of the
  // job's seed, the step and the index.
  [[nodiscard]] std::uint64_t seed() const { return seed_; }
  // Numbers of samples in [0, WorkerOptions::samples), in the order of the epoch's permutation.
  [[nodiscard]] std::span<const std::int64_t> samples() const { return samples_; }

 private:
  std::int32_t index_;
  std::uint64_t seed_;
  std::vector<std::int64_t> samples_;
};

// What goes with the gradient of a micro-batch.
struct Contribution {
  // Summed over the micro-batch's samples (or tokens), not a mean.
  double loss = 0;
  // How many samples or tokens that sum is over. The job's mean divides by the sum of all weights.
  double weight = 0;
};

// Belongs to its Worker; valid until the next BeginStep(). Training thread only.
class TrainingStep {
 public:
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  // The number of this update, from 1.
  [[nodiscard]] Step number() const { return number_; }
  // This rank's part of the global batch; can be empty when there are more ranks than parts.
  [[nodiscard]] const std::vector<MicroBatch>& micro_batches() const { return micro_batches_; }

  // Adds what one micro-batch of this step gave: the gradient of the *sum* of its losses, of
  // WorkerOptions::gradient_elements values, and loss and weight as sums too. `gradient` is copied
  // from and free again on return. Each micro-batch is added exactly once, in the order of
  // micro_batches(). Misuse is kept in status().
  void Add(const MicroBatch& batch, std::span<const float> gradient, Contribution contribution);

  // The same with a gradient in the memory of WorkerOptions::device, which the work on `stream` so
  // far makes; it is read behind that, and what is put on `stream` afterwards may overwrite it. The
  // host does not wait.
  void Add(const MicroBatch& batch, DeviceSpan<const float> gradient, Contribution contribution,
           DeviceStream& stream);
  // The same in parts, as a backward pass makes them: the elements of this micro-batch's gradient
  // that begin at `first`. Parts come in any order and cover each element once; Add without a
  // gradient then completes the micro-batch. With the last micro-batch of each rank its parts are
  // summed over the ranks while the backward pass goes on. That goes from the last elements of the
  // gradient to the first, so let the parameters lie in the order of the forward pass.
  void AddPart(const MicroBatch& batch, std::int64_t first, DeviceSpan<const float> part,
               DeviceStream& stream);
  void Add(const MicroBatch& batch, Contribution contribution);

  // Sums over all micro-batches of all ranks in an order that does not depend on the ranks, and
  // divides by the sum of the weights. Blocks until all ranks have come. False: the step is void
  // (a worker failed, or misuse, see status()); call BeginStep(), which gives the same step again.
  [[nodiscard]] bool Reduce();

  // After Reduce(): the mean gradient, its Euclidean norm, the mean loss and the sum of weights;
  // the same bytes on every rank. gradient() may be changed in place (clipping) before it is
  // applied.
  [[nodiscard]] std::span<float> gradient() { return gradient_; }
  // With WorkerOptions::device the gradient lies there, and gradient() is empty. It is complete;
  // work on any stream may use it.
  [[nodiscard]] DeviceSpan<float> device_gradient() { return device_gradient_; }
  [[nodiscard]] double gradient_norm() const { return gradient_norm_; }
  [[nodiscard]] double loss() const { return loss_; }
  [[nodiscard]] double weight() const { return weight_; }

  // Agrees with all ranks on the outcome. kApply: update the state now, with gradient(). kSkip: the
  // gradient is not finite; the samples count as used, and nobody updates. kVoid: a failure; the
  // same step, or an earlier one after a rollback, comes again. Blocks until the outcome is known,
  // through a failure also: then the next generation has decided it.
  [[nodiscard]] Outcome Commit();

  // Ok, or the misuse that made this step void, with what to do. It also ends the loop: BeginStep()
  // gives no further step, and Finish() returns it.
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  friend class worker::Runner;
  explicit TrainingStep(worker::Runner& runner) : runner_(runner) {}

  worker::Runner& runner_;
  Step number_;
  std::vector<MicroBatch> micro_batches_;
  std::span<float> gradient_;
  DeviceSpan<float> device_gradient_;
  double gradient_norm_ = 0;
  double loss_ = 0;
  double weight_ = 0;
  Status status_;
};

}  // namespace muster
