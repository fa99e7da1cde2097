#include "coordinator/core/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "protocol/codec.h"

namespace muster::coordinator {

namespace {
constexpr int kMinHeartbeatsPerLease = 5;
}  // namespace

Status Config::Validate() const {
  const auto positive = [](Duration d, const char* name) {
    if (d > Duration()) return Status();
    return InvalidArgument(fmt::format("{} must be positive", name));
  };
  MUSTER_RETURN_IF_ERROR(positive(forming_timeout, "forming-timeout"));
  MUSTER_RETURN_IF_ERROR(positive(autonomy, "autonomy"));
  MUSTER_RETURN_IF_ERROR(positive(progress_timeout, "progress-timeout"));
  MUSTER_RETURN_IF_ERROR(positive(checkpoint_timeout, "checkpoint-timeout"));
  if (settle < Duration() || join_window < Duration() || growth_interval < Duration() ||
      max_patience < Duration()) {
    return InvalidArgument(
        "settle, join-window, growth-interval and max-patience must not be negative");
  }
  if (settle >= forming_timeout) {
    return InvalidArgument(fmt::format("settle ({} ms) must be below forming-timeout ({} ms)",
                                       settle.millis(), forming_timeout.millis()));
  }
  if (first_step_timeout < progress_timeout) {
    return InvalidArgument(
        fmt::format("first-step-timeout ({} ms) must not be below progress-timeout ({} ms)",
                    first_step_timeout.millis(), progress_timeout.millis()));
  }
  if (max_patience >= autonomy) {
    return InvalidArgument(fmt::format("max-patience ({} ms) must be below autonomy ({} ms)",
                                       max_patience.millis(), autonomy.millis()));
  }
  if (cooldown_failures < 1) return InvalidArgument("cooldown-failures must be at least 1");
  if (cooldown < Duration() || cooldown_forgiveness < Duration()) {
    return InvalidArgument("cooldown and cooldown-forgiveness must not be negative");
  }
  if (max_cooldown < cooldown) {
    return InvalidArgument(fmt::format("max-cooldown ({} ms) must not be below cooldown ({} ms)",
                                       max_cooldown.millis(), cooldown.millis()));
  }
  if (max_forming_attempts < 1 || max_consecutive_skips < 1) {
    return InvalidArgument("max-forming-attempts and max-consecutive-skips must be at least 1");
  }
  return {};
}

Timing TimingOf(const JobSpec& spec, std::int32_t world_size) {
  Timing timing;
  timing.lease = spec.failure_timeout;
  timing.grace = spec.failure_timeout / 4;
  // Slower in large worlds, but never so slow that a few lost ones would end a lease.
  timing.heartbeat_interval = std::min(
      std::max(spec.failure_timeout / kHeartbeatsPerLease, Duration::Micros(world_size) * 100),
      spec.failure_timeout / kMinHeartbeatsPerLease);
  return timing;
}

namespace {

Status ValidateTensors(const JobSpec& spec) {
  std::set<std::string> names;
  for (const TensorSpec& tensor : spec.tensors) {
    if (tensor.name.empty()) return InvalidArgument("a tensor of the spec has no name");
    if (!names.insert(tensor.name).second) {
      return InvalidArgument(
          fmt::format("tensor {} is there twice: names are unique", tensor.name));
    }
    if (const auto count = CountElements(tensor.shape); !count.ok()) return count.status();
    if (tensor.cut_dimension >= static_cast<int>(tensor.shape.size())) {
      return InvalidArgument(fmt::format("tensor {} is cut along dimension {}, but has only {}",
                                         tensor.name, tensor.cut_dimension, tensor.shape.size()));
    }
    if (tensor.cut_dimension < kFlat) {
      return InvalidArgument(
          fmt::format("tensor {} is cut by a list of boxes, which fits a single world size: cut it "
                      "along a dimension or flat",
                      tensor.name));
    }
    if (tensor.sharded() && spec.checkpoint_directory.empty()) {
      return InvalidArgument(
          fmt::format("tensor {} is sharded, so its only copy can die with a worker: set a "
                      "checkpoint directory",
                      tensor.name));
    }
  }
  return {};
}

}  // namespace

Status ValidateSpec(const JobSpec& spec) {
  if (spec.min_workers < 1 || spec.max_workers < spec.min_workers) {
    return InvalidArgument(fmt::format("workers {} to {}: need 1 <= min-workers <= max-workers",
                                       spec.min_workers, spec.max_workers));
  }
  if (spec.max_workers > kMaxWorldSize) {
    return InvalidArgument(
        fmt::format("max-workers {} is above {}", spec.max_workers, kMaxWorldSize));
  }
  if (spec.micro_batches < spec.max_workers || spec.micro_batches > kMaxMicroBatches) {
    return InvalidArgument(fmt::format(
        "micro-batches {}: need max-workers ({}) <= micro-batches <= {}, so that each rank has one",
        spec.micro_batches, spec.max_workers, kMaxMicroBatches));
  }
  if (spec.samples < 1 || spec.global_batch < spec.micro_batches) {
    return InvalidArgument(
        fmt::format("samples {} and global-batch {}: need samples >= 1 and global-batch >= "
                    "micro-batches ({})",
                    spec.samples, spec.global_batch, spec.micro_batches));
  }
  if (spec.failure_timeout < kMinFailureTimeout) {
    return InvalidArgument(fmt::format("failure-timeout {} ms is below {} ms",
                                       spec.failure_timeout.millis(), kMinFailureTimeout.millis()));
  }
  if (spec.steps < 0 || spec.checkpoint_every < 0 || spec.checkpoint_keep < 1 ||
      spec.checkpoint_keep_every < 0) {
    return InvalidArgument(
        "steps, checkpoint-every and checkpoint-keep-every must not be negative, checkpoint-keep "
        ">= 1");
  }
  if (spec.checkpoint_every > 0 && spec.checkpoint_directory.empty()) {
    return InvalidArgument("checkpoint-every is set without a checkpoint directory");
  }
  return ValidateTensors(spec);
}

std::string DifferenceOf(const JobSpec& running, const JobSpec& offered) {
  std::string text;
  const auto add = [&text](const char* field, const auto& a, const auto& b) {
    if (a == b) return;
    if (!text.empty()) text += "; ";
    text += fmt::format("{}: {} there, {} here", field, a, b);
  };
  add("min-workers", running.min_workers, offered.min_workers);
  add("max-workers", running.max_workers, offered.max_workers);
  add("steps", running.steps, offered.steps);
  add("seed", running.seed, offered.seed);
  add("samples", running.samples, offered.samples);
  add("global-batch", running.global_batch, offered.global_batch);
  add("micro-batches", running.micro_batches, offered.micro_batches);
  add("failure-timeout ms", running.failure_timeout.millis(), offered.failure_timeout.millis());
  add("checkpoint directory", running.checkpoint_directory, offered.checkpoint_directory);
  add("checkpoint-every", running.checkpoint_every, offered.checkpoint_every);
  add("checkpoint-keep", running.checkpoint_keep, offered.checkpoint_keep);
  add("checkpoint-keep-every", running.checkpoint_keep_every, offered.checkpoint_keep_every);
  add("backend", NameOf(running.backend), NameOf(offered.backend));
  add("number of tensors", running.tensors.size(), offered.tensors.size());
  const std::size_t common = std::min(running.tensors.size(), offered.tensors.size());
  for (std::size_t i = 0; i < common; ++i) {
    const TensorSpec& a = running.tensors[i];
    const TensorSpec& b = offered.tensors[i];
    if (a == b) continue;
    const auto describe = [](const TensorSpec& t) {
      return fmt::format("{} {}{} [{}] cut {}{}", t.name, DTypeName(t.dtype), t.logical_dtype,
                         fmt::join(t.shape, ","), t.cut_dimension,
                         t.alias_of.empty() ? "" : " alias of " + t.alias_of);
    };
    add(fmt::format("tensor {}", i).c_str(), describe(a), describe(b));
    break;  // one is enough to find the mistake
  }
  return text;
}

}  // namespace muster::coordinator
