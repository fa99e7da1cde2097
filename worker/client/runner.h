// The training thread's side of a worker: what BeginStep, Add, Reduce, Commit and Finish do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/root_claim.h"
#include "worker/client/control_thread.h"
#include "worker/client/gradient_sum.h"
#include "worker/client/record_writer.h"
#include "worker/client/saver.h"
#include "worker/client/state_table.h"
#include "worker/client/step.h"
#include "worker/client/worker.h"
#include "worker/collective/communicator.h"
#include "worker/collective/flight_file.h"
#include "worker/collective/reduction_tree.h"
#include "worker/collective/tcp_listener.h"
#include "worker/core/micro_batch_plan.h"

namespace muster::worker {

// Threads: the training thread, except RequestLeave().
class Runner {
 public:
  // As Worker::Join.
  [[nodiscard]] static Result<std::unique_ptr<Runner>> Start(const WorkerOptions& options,
                                                             std::shared_ptr<StateTable> table);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // As in Worker and TrainingStep.
  [[nodiscard]] TrainingStep* BeginStep();
  void Add(TrainingStep& step, const MicroBatch& batch, std::span<const float> gradient,
           Contribution contribution);
  void AddPart(TrainingStep& step, const MicroBatch& batch, std::int64_t first,
               DeviceSpan<const float> part, DeviceStream& stream);
  void Complete(TrainingStep& step, const MicroBatch& batch, Contribution contribution);
  [[nodiscard]] bool Reduce(TrainingStep& step);
  [[nodiscard]] Outcome Commit(TrainingStep& step);
  [[nodiscard]] Status Finish();
  void RequestLeave() const noexcept { control_->RequestLeave(); }
  void BeginPhase(const std::string& name, Duration limit);
  void EndPhase();
  [[nodiscard]] std::vector<MicroBatch> Upcoming(int count) const;

  [[nodiscard]] Status status() const;
  [[nodiscard]] Rank rank() const { return rank_; }
  [[nodiscard]] std::int32_t world_size() const { return record_.world_size(); }
  [[nodiscard]] Generation generation() const { return record_.generation; }
  [[nodiscard]] Lineage lineage() const { return record_.lineage; }
  [[nodiscard]] Step committed() const;
  [[nodiscard]] const std::string& name() const { return identity_.worker.value(); }

 private:
  // Where the present step stands.
  enum class Progress { kNone, kAdding, kReduced, kOver };

  Runner(Identity identity, std::shared_ptr<StateTable> table, TcpListener listener,
         std::int64_t gradient_elements);
  [[nodiscard]] Status Join(const std::string& token, bool leave_on_sigterm);

  // runner.cc
  void TakeSnapshotFor(const CheckpointKey& key, bool needed);
  // A generation has started: the size of this rank's snapshots is known.
  void PrepareSaves();

  // runner_form.cc
  [[nodiscard]] Status UseDevice(const WorkerOptions& options);
  void Form(const GenerationRecord& record);
  // The communicator of `record`, not yet connected, in communicator_ and connect_. kInterrupted
  // when the generation was taken back meanwhile.
  [[nodiscard]] Status MakeCommunicator(const GenerationRecord& record);
  [[nodiscard]] Result<std::shared_ptr<Communicator>> MakeTcp(const GenerationRecord& record,
                                                              Rank rank, Duration forming,
                                                              Duration progress);
  [[nodiscard]] Result<std::shared_ptr<Communicator>> MakeNccl(const GenerationRecord& record,
                                                               Rank rank, Duration forming,
                                                               Duration progress);
  // What rank 0 mints, and the others wait for.
  [[nodiscard]] Result<std::string> AwaitGroupId(const GenerationRecord& record);
  void DropCommunicator();
  // Sees to it that no other job writes below the checkpoint root. Waits for a few seconds;
  // kInterrupted when the generation was taken back meanwhile.
  [[nodiscard]] Status ClaimRoot(const GenerationRecord& record);

  // runner.cc
  [[nodiscard]] bool OpenStep();
  void FinishSteps();
  void AwaitSave();
  void WaitSaidOnce(ControlThread::Lock& lock, bool* said);
  [[nodiscard]] MicroBatch MakeMicroBatch(Step number, const StepBatch& batch,
                                          std::int32_t index) const;
  // An operation of the data plane failed in the present generation: reported, unless it was
  // interrupted, and the communicator given up.
  void OperationFailedWith(const Status& status);
  void GiveUpStep(const std::string& reason);
  // After an error that may be the device's: when that is lost, so is this worker, for no further
  // attempt would go better. The end of an abort over NCCL looks at the device by itself.
  // True: it was given up.
  [[nodiscard]] bool GaveUpDevice(const Status& why);

  // runner_step.cc
  void Misuse(TrainingStep& step, Status status);
  // Is it this micro-batch's turn? Misuse when not.
  [[nodiscard]] bool CheckTurn(TrainingStep& step, const MicroBatch& batch);
  [[nodiscard]] bool CheckContribution(TrainingStep& step, const MicroBatch& batch,
                                       const Contribution& contribution);
  void AddScalars(TrainingStep& step, const MicroBatch& batch, const Contribution& contribution);
  [[nodiscard]] Status ReduceAll(TrainingStep& step);
  [[nodiscard]] bool Vote(TrainingStep& step, Outcome vote, Wishes wishes);
  void WriteRecord(const TrainingStep& step, Outcome outcome);
  [[nodiscard]] StepEntry EntryOf(Step step) const;

  const Identity identity_;
  const std::shared_ptr<StateTable> table_;
  const std::int64_t gradient_elements_;
  TcpListener listener_;
  std::unique_ptr<checkpoint::FileSystem> fs_;
  std::unique_ptr<checkpoint::RootClaim> root_claim_;  // null: no checkpoints
  bool unprotected_ = false;                           // that this is so was said
  RecordWriter records_;
  FlightFile flight_;  // no ring in it: none is kept
  std::unique_ptr<ControlThread> control_;
  std::unique_ptr<Saver> saver_;  // after control_: it reports to it until it has ended

  std::shared_ptr<Device> device_;  // null: gradients lie in the host's memory
  Duration abort_timeout_;
  std::shared_ptr<Communicator> communicator_;       // writes down what it does
  std::shared_ptr<Communicator> bare_communicator_;  // what it does that with
  std::function<Status()> connect_;  // meets the other members of communicator_'s generation
  // Of the generation that trains, as of the last BeginStep.
  GenerationRecord record_;
  Rank rank_{-1};
  Member member_;

  // The present step.
  std::unique_ptr<TrainingStep> step_;
  Progress progress_ = Progress::kNone;
  StepBatch batch_;
  Range dealt_;  // micro-batches of this rank
  std::size_t added_ = 0;
  std::int64_t part_added_ = 0;  // elements of the next micro-batch's gradient
  bool broke_adding_ = false;    // the step is over, though the loop goes on adding to it
  std::vector<Range> ranges_;    // micro-batches of each rank
  std::unique_ptr<GradientSum> gradient_;
  std::optional<PartialSums<double>> scalars_;  // loss and weight
  bool finite_ = false;
  std::uint64_t digest_ = 0;

  std::optional<CheckpointKey> last_save_;
  Status misuse_;
  std::optional<Status> finished_;
};

}  // namespace muster::worker
