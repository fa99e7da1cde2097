#include "worker/client/options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "checkpoint/layout.h"
#include "protocol/prng.h"
#include "worker/collective/gpu_backend.h"

namespace muster {

namespace {

// Far more than can be of use, and far from what overflows.
constexpr Duration kMaxAbortTimeout = Duration::Seconds(3600);

std::string FromEnv(const char* name, std::string otherwise = {}) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? std::move(otherwise) : std::string(value);
}

}  // namespace

WorkerOptions WorkerOptions::FromEnvironment() {
  WorkerOptions options;
  options.coordinator = FromEnv("MUSTER_COORDINATOR", options.coordinator);
  options.job = FromEnv("MUSTER_JOB");
  options.worker = FromEnv("MUSTER_WORKER");
  options.node = FromEnv("MUSTER_NODE");
  options.token = FromEnv("MUSTER_TOKEN");
  options.record_directory = FromEnv("MUSTER_RECORD_DIR");
  options.flight_directory = FromEnv("MUSTER_FLIGHT_DIR");
  options.data_address = FromEnv("MUSTER_DATA_ADDRESS");
  options.backend = FromEnv("MUSTER_BACKEND", options.backend);
  const std::string abort_timeout = FromEnv("MUSTER_ABORT_TIMEOUT_MS");
  if (!abort_timeout.empty()) {
    std::int64_t millis = -1;  // what is no number is refused by Join()
    const char* end = abort_timeout.data() + abort_timeout.size();
    const auto [rest, error] = std::from_chars(abort_timeout.data(), end, millis);
    if (error != std::errc() || rest != end || millis > kMaxAbortTimeout.millis()) millis = -1;
    options.abort_timeout = Duration::Millis(millis);
  }
  return options;
}

namespace worker {

namespace {

Status CheckName(const char* what, const std::string& name) {
  if (name.size() <= kMaxNameBytes) return {};
  return InvalidArgument(
      fmt::format("the {} '{}…' is longer than {} bytes", what, name.substr(0, 20), kMaxNameBytes));
}

}  // namespace

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

Status CheckOptions(const WorkerOptions& options, const StateTable& table) {
  MUSTER_RETURN_IF_ERROR(table.status());
  if (options.job.empty()) {
    return InvalidArgument("the job has no name: set WorkerOptions::job or MUSTER_JOB");
  }
  MUSTER_RETURN_IF_ERROR(CheckName("job name", options.job));
  MUSTER_RETURN_IF_ERROR(CheckName("worker name", options.worker));
  MUSTER_RETURN_IF_ERROR(CheckName("node name", options.node));
  if (options.connect_timeout < Duration()) {
    return InvalidArgument("connect_timeout must not be negative");
  }
  if (options.abort_timeout < Duration::Millis(1) || options.abort_timeout > kMaxAbortTimeout) {
    return InvalidArgument(
        fmt::format("abort_timeout (MUSTER_ABORT_TIMEOUT_MS) must be a number of 1 ms to {} ms",
                    kMaxAbortTimeout.millis()));
  }
  if (options.gradient_elements < 0) {
    return InvalidArgument("gradient_elements must not be negative; 0 derives it from the state");
  }
  if (options.samples < 1 || options.global_batch < 1 || options.micro_batches < 1) {
    return InvalidArgument(
        fmt::format("samples ({}), global_batch ({}) and micro_batches ({}) must all be set, each "
                    "at least 1",
                    options.samples, options.global_batch, options.micro_batches));
  }
  if (table.HasShards() && options.checkpoint_directory.empty()) {
    return FailedPrecondition(
        "the state has sharded tensors, whose parts die with the worker that holds them: set "
        "checkpoint_directory to a directory that all workers share");
  }
  if (!options.checkpoint_directory.empty() && options.checkpoint_directory.front() != '/') {
    return InvalidArgument(fmt::format(
        "checkpoint_directory '{}' must be an absolute path, as workers may start anywhere",
        options.checkpoint_directory));
  }
  return checkpoint::CheckTensors(table.Specs());
}

Result<Backend> BackendOf(const WorkerOptions& options) {
  const bool chosen = options.backend == "nccl";
  if (!chosen && options.backend != "auto" && options.backend != "tcp") {
    return InvalidArgument(fmt::format("backend '{}': it is auto, nccl or tcp", options.backend));
  }
  if (options.backend == "tcp") return Backend::kTcp;
  if (options.device == nullptr) {
    if (!chosen) return Backend::kTcp;
    return FailedPrecondition(
        "backend nccl needs a GPU, and this worker computes without one: set WorkerOptions::device "
        "(OpenDevice; char_lm --device cuda), or take backend tcp or auto");
  }
  const Status usable = NcclUsable();
  if (usable.ok()) return Backend::kNccl;
  if (chosen) return usable;
  std::fprintf(stderr, "muster: NCCL is off, gradients go over TCP: %s\n",
               usable.message().c_str());
  return Backend::kTcp;
}

Identity IdentityOf(const WorkerOptions& options, const StateTable& table) {
  Identity identity;
  std::random_device random;
  identity.seed =
      (std::uint64_t{random()} << 32U) ^ random() ^ Mix64(static_cast<std::uint64_t>(::getpid()));
  identity.job = JobName(options.job);
  identity.node = NodeName(options.node.empty() ? HostName() : options.node);
  identity.explicit_name = !options.worker.empty();
  identity.worker = WorkerId(
      identity.explicit_name ? options.worker : "w-" + ToHex(Mix64(identity.seed)).substr(0, 8));
  identity.pid = ::getpid();
  identity.url = options.coordinator;
  identity.connect_timeout = options.connect_timeout;
  JobSpec& spec = identity.spec;
  spec.min_workers = options.min_workers;
  spec.max_workers = options.max_workers;
  spec.steps = options.steps;
  spec.seed = options.seed;
  spec.samples = options.samples;
  spec.global_batch = options.global_batch;
  spec.micro_batches = options.micro_batches;
  spec.failure_timeout = options.failure_timeout;
  spec.checkpoint_directory = options.checkpoint_directory;
  spec.checkpoint_every = options.checkpoint_every;
  spec.checkpoint_keep = options.checkpoint_keep;
  spec.checkpoint_keep_every = options.checkpoint_keep_every;
  spec.tensors = table.Specs();
  return identity;
}

FlightFile OpenFlight(const std::string& directory, const Identity& identity) {
  FlightFile flight;
  if (directory == "off") return flight;
  const Status status = flight.Open(directory, ThisProcess(identity.job, identity.worker));
  if (!status.ok()) {
    std::fprintf(stderr, "muster: worker %s goes on without a flight ring: %s\n",
                 identity.worker.value().c_str(), status.message().c_str());
  }
  return flight;
}

}  // namespace worker
}  // namespace muster
