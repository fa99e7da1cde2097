#include "chaos/sim/checkers/exact_data.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster::sim {

namespace {
constexpr std::size_t kReductionsKept = 64;
}  // namespace

void ExactData::OnReduced(const OpKey& key, std::vector<Range> parts, Verdict& verdict) {
  if (exact_.contains(key)) return;
  std::ranges::sort(parts);
  std::int64_t next = 0;
  for (const Range& part : parts) {
    if (part.size() == 0) continue;
    if (part.lo != next) {
      verdict.Violate("S3", fmt::format("step {} of generation {}: micro-batch {} comes {}",
                                        key.step.value(), key.generation.value(),
                                        std::min(part.lo, next), part.lo < next ? "twice" : "not"));
    }
    next = part.hi;
  }
  const worker::StepBatch batch = worker::BatchOf(spec_, key.step);
  if (next != batch.micro_batches) {
    verdict.Violate(
        "S3", fmt::format("step {} of generation {}: {} micro-batches of {}", key.step.value(),
                          key.generation.value(), next, batch.micro_batches));
  }
  if (exact_.size() >= kReductionsKept) exact_.erase(exact_.begin());
  exact_[key] = true;
}

void ExactData::OnCommit(const Commit& commit, const Chain& chain, Verdict& verdict) const {
  if (chain.Voided(commit.lineage, commit.generation, commit.step)) return;
  const worker::StepBatch batch = worker::BatchOf(spec_, commit.step);
  const Step below(commit.step.value() - 1);
  std::int64_t expected = 0;
  std::int64_t epoch = 0;
  if (below > Step()) {
    const worker::StepBatch before = worker::BatchOf(spec_, below);
    const bool over = before.positions.hi == spec_.samples;
    expected = over ? 0 : before.positions.hi;
    epoch = before.epoch + (over ? 1 : 0);
  }
  if (batch.positions.lo != expected || batch.epoch != epoch) {
    verdict.Violate(
        "S3", fmt::format("step {} takes samples from {} of epoch {}, not from {} of "
                          "epoch {}",
                          commit.step.value(), batch.positions.lo, batch.epoch, expected, epoch));
  }
}

}  // namespace muster::sim
