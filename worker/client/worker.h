// A worker: one process of an elastic training job. Embed it like this.
//
//   TrainingState state;
//   state.AddReplicated("model", std::span<float>(parameters));
//   WorkerOptions options = WorkerOptions::FromEnvironment();
//   options.max_workers = 4; options.steps = 1000; options.samples = data.size(); …
//   Result<Worker> worker = Worker::Join(options, state);
//   if (!worker.ok()) return Fail(worker.status());
//   while (TrainingStep* step = worker->BeginStep()) {
//     for (const MicroBatch& batch : step->micro_batches())
//       step->Add(batch, Gradient(batch.samples()), {.loss = loss_sum, .weight = samples});
//     if (!step->Reduce()) continue;
//     if (step->Commit() == Outcome::kApply) Update(parameters, step->gradient());
//   }
//   return Exit(worker->Finish());
//
// On a GPU the loop is the same. `cuda_stream` is the cudaStream_t on which the program works, and
// `weights` is memory of the GPU's; what differs:
//
//   Result<std::shared_ptr<Device>> device = OpenDevice(0);  // worker/collective/gpu_backend.h
//   if (!device.ok()) return Fail(device.status());
//   std::unique_ptr<DeviceStream> stream = (*device)->Adopt(cuda_stream);
//   state.UseDevice(*device, *stream);
//   state.AddReplicated("model", DeviceSpan<float>(weights, n));
//   options.device = *device;
//   …
//   step->Add(batch, DeviceSpan<const float>(gradient, n), {.loss = …, .weight = …}, *stream);
//   …
//   if (step->Commit() == Outcome::kApply) Update(weights, step->device_gradient(), cuda_stream);
//
// The stream and the memory must outlive the Worker; Muster waits for the stream where it has to,
// and the program for nothing but its own losses.
//
// When a worker dies, the others get a void step or not even that, and the next BeginStep() returns
// once a smaller generation has formed and holds the state. A thread of Muster's own keeps contact
// with the coordinator, so a long step never makes a healthy worker look dead.
//
// With MUSTER_RECORD_DIR set, a line of JSON is appended to
// "<worker>-<pid>.jsonl" there before each Commit() returns:
//   {"t_ns", "pid", "worker", "incarnation", "generation", "step", "rank", "world_size", "epoch",
//    "samples": [[lo, hi], …], "outcome", "loss", "digest"}
// where samples are this rank's positions in the order of the epoch, loss is the mean over the job,
// and digest is that of the reduced gradient; and at the end of the job
//   {…, "final": true, "step", "digest"}
// where digest is that of all replicated and derived tensors, equal on all ranks.
//
// Each worker notes its operations with the others in a small file of fixed size, a flight ring,
// which outlives it when it is killed; `muster status --ops` compares those of all workers of a
// host. See worker/collective/flight_file.h for when it is removed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "protocol/ids.h"
#include "protocol/limits.h"
#include "protocol/records.h"
#include "protocol/status.h"
#include "protocol/time.h"
#include "worker/client/step.h"
#include "worker/client/training_state.h"
#include "worker/collective/device.h"

namespace muster {

// Who this worker is and what the job is. Join() checks all of it and says what is wrong. All
// workers of a job must agree on the backend that comes of it and every field from `min_workers` to
// `checkpoint_keep_every`.
struct WorkerOptions {
  // Reads MUSTER_COORDINATOR, MUSTER_JOB, MUSTER_WORKER, MUSTER_NODE, MUSTER_TOKEN,
  // MUSTER_RECORD_DIR, MUSTER_FLIGHT_DIR, MUSTER_DATA_ADDRESS, MUSTER_BACKEND and
  // MUSTER_ABORT_TIMEOUT_MS into the members beside which they stand.
  [[nodiscard]] static WorkerOptions FromEnvironment();

  std::string coordinator = "http://127.0.0.1:7077";  // MUSTER_COORDINATOR
  std::string job;                                    // MUSTER_JOB; required
  // MUSTER_WORKER. Empty: a name with a random part. A chosen name must be free: while a live
  // worker bears it, Join() is refused.
  std::string worker;
  std::string node;              // MUSTER_NODE; empty: the host's name
  std::string token;             // MUSTER_TOKEN; what musterd was given with --token-file
  std::string record_directory;  // MUSTER_RECORD_DIR; empty: no records
  // MUSTER_FLIGHT_DIR: where the flight ring lies; made if it is missing. Empty: in memory, in
  // /dev/shm/muster-<uid>. "off": no ring. When it cannot be made, a line on stderr says so.
  std::string flight_directory;
  // MUSTER_DATA_ADDRESS: the host or address on which other workers reach this one. Empty: the one
  // from which the coordinator sees this worker come.
  std::string data_address;
  // How long Join() tries to reach a coordinator that does not answer.
  Duration connect_timeout = Duration::Seconds(60);
  // SIGTERM makes this worker leave at the next step boundary (RequestLeave), instead of killing
  // it.
  bool leave_on_sigterm = false;
  // Values in the gradient of a micro-batch. 0: as many as the registered replicated and derived
  // float32 tensors have together.
  std::int64_t gradient_elements = 0;
  // Where gradients are added and reduced; null: in the host's memory. See OpenDevice()
  // (worker/collective/gpu_backend.h) and TrainingState::UseDevice().
  std::shared_ptr<Device> device;
  // MUSTER_ABORT_TIMEOUT_MS: how long ending a hung communicator of GPUs may take. It is a matter
  // of a second at most, unless the driver or a neighbour on the host hangs too; what the loop has
  // put on the device before counts as well, so let it be longer than a step. Past it this process
  // is given up: told to the coordinator, and killed.
  Duration abort_timeout = Duration::Seconds(15);

  // MUSTER_BACKEND: what carries tensors between workers: "nccl" (needs a device), "tcp", or
  // "auto": NCCL where this worker has a device and NCCL is there, otherwise TCP, with a line on
  // stderr that says why.
  std::string backend = "auto";
  std::int32_t min_workers = 1;    // training waits while there are fewer
  std::int32_t max_workers = 1;    // more are kept as spares
  std::int64_t steps = 0;          // ends the job; 0: it ends when all workers call Finish()
  std::uint64_t seed = 0;          // of the sample order
  std::int64_t samples = 0;        // in one epoch
  std::int64_t global_batch = 0;   // samples of one step, whatever the number of workers
  std::int32_t micro_batches = 0;  // parts of a global batch; at least max_workers
  // The one knob: how long a worker may be silent before it is taken for dead.
  Duration failure_timeout = kDefaultFailureTimeout;
  std::string checkpoint_directory;   // absolute, the same for all workers; empty: no checkpoints
  std::int64_t checkpoint_every = 0;  // steps; 0: only those that sharded state needs
  std::int32_t checkpoint_keep = 3;   // older ones are deleted once a newer one counts
  // Checkpoints of steps that are multiples of this are never deleted; 0: no such ones. A file
  // named PINNED in a checkpoint's directory keeps that one too, for as long as it is there.
  std::int64_t checkpoint_keep_every = 0;
};

namespace worker {
class Runner;
}  // namespace worker

// While it lives, the coordinator's status shows the phase, and the worker is not blamed for making
// no progress until the deadline that was given with it.
class PhaseScope {
 public:
  PhaseScope(PhaseScope&&) noexcept;
  PhaseScope& operator=(PhaseScope&&) = delete;
  ~PhaseScope();

 private:
  friend class Worker;
  explicit PhaseScope(worker::Runner* runner) : runner_(runner) {}
  worker::Runner* runner_;
};

// Threads: all calls from one thread, the training thread, except RequestLeave(). A process may
// hold several workers.
class Worker {
 public:
  // Starts the worker's own thread, listens for peers, and says hello to the coordinator. Blocks
  // until it is welcomed; a coordinator that does not answer is tried for `connect_timeout`.
  // `state` is sealed: nothing can be added to it any more. Errors: kInvalidArgument (a bad option,
  // or a spec that contradicts the running job's: the message names the difference),
  // kFailedPrecondition (sharded state without a usable checkpoint directory), kUnavailable (no
  // coordinator: the message names the URL), kPermissionDenied (token), kAlreadyExists (the name is
  // taken by a live worker), and whatever the state's status() holds.
  [[nodiscard]] static Result<Worker> Join(const WorkerOptions& options, TrainingState& state);

  Worker(Worker&&) noexcept;
  Worker& operator=(Worker&&) = delete;
  // Without Finish() it leaves abruptly, as if the process had died.
  ~Worker();

  // The next step; null when there is none: the job ended, this worker left, or it cannot go on
  // (Finish() says which). Blocks while the job waits for workers, re-forms or restores; a line on
  // stderr says so. The state is then the one before step->number(), on every worker alike.
  [[nodiscard]] TrainingStep* BeginStep();

  // Ends this worker's part. Ok after the job's end or a planned leave; otherwise why it cannot go
  // on. Called before the job's end it asks to leave; when all workers do, the job ends. Blocks
  // until the coordinator has confirmed, for at most `failure_timeout` and 10 s if it does not
  // answer. A second call returns the same.
  [[nodiscard]] Status Finish();

  // Leave at the next step boundary: BeginStep() then returns null and Finish() ok, and the others
  // go on without this worker. From any thread, and from a signal handler.
  void RequestLeave() const noexcept;

  // Names what the training thread does outside of steps (an evaluation, a compilation) until the
  // returned value is destroyed; see PhaseScope. `limit` counts from now.
  [[nodiscard]] PhaseScope Phase(const std::string& name, Duration limit);

  // What this rank would get in the `count` steps after the present one if nobody came or went: for
  // loaders that read ahead.
  [[nodiscard]] std::vector<MicroBatch> Upcoming(int count) const;

  // Ok, or why no further step will come.
  [[nodiscard]] Status status() const;

  // Of the generation that the present step belongs to. REQUIRES for a meaning: BeginStep()
  // returned a step.
  [[nodiscard]] Rank rank() const;
  [[nodiscard]] std::int32_t world_size() const;
  [[nodiscard]] Generation generation() const;
  // The lineage of the job's state; drawn anew when a job is adopted by force.
  [[nodiscard]] Lineage lineage() const;
  // The last committed step.
  [[nodiscard]] Step committed() const;
  [[nodiscard]] const std::string& name() const;

 private:
  explicit Worker(std::unique_ptr<worker::Runner> runner);
  std::unique_ptr<worker::Runner> runner_;
};

}  // namespace muster
