// What computes in char_lm: the model and its optimizer, on the CPU or on a GPU. The loop around it
// is the same.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "protocol/status.h"
#include "worker/client/step.h"
#include "worker/client/training_state.h"
#include "worker/collective/device.h"
#include "worker/examples/char_lm_model.h"
#include "worker/examples/text_corpus.h"

namespace char_lm {

struct TrainerOptions {
  ModelShape shape;
  std::uint64_t seed = 0;  // of the initial weights
  Adam adam;
  bool sharded = false;              // the optimizer's state is cut over the workers
  std::int64_t samples_at_once = 1;  // the most in a micro-batch
};

// The training thread's.
class Trainer {
 public:
  virtual ~Trainer() = default;
  Trainer() = default;
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Adds what one micro-batch gives to the step: the gradient of the sum of its samples' losses.
  [[nodiscard]] virtual muster::Status Add(muster::TrainingStep& step,
                                           const muster::MicroBatch& batch) = 0;
  // Updates what this worker holds, with the step's mean gradient.
  virtual void Apply(muster::TrainingStep& step) = 0;
  // All weights, as this worker sees them.
  [[nodiscard]] virtual muster::Result<std::vector<float>> Weights() = 0;
};

// By how much a mean gradient is scaled before it is applied: one longer than 1 becomes 1 long.
[[nodiscard]] inline float ClippingScale(double norm) {
  return static_cast<float>(norm > 1 ? 1 / norm : 1);
}

// On `device`. Registers its tensors, which lie there, with `state`. `corpus` and `state` must
// outlive it. Errors are those of the device.
[[nodiscard]] muster::Result<std::unique_ptr<Trainer>> MakeCudaTrainer(
    std::shared_ptr<muster::Device> device, const TrainerOptions& options, const TextCorpus& corpus,
    muster::TrainingState& state);

}  // namespace char_lm
