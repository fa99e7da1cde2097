#include "worker/client/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "checkpoint/discover.h"
#include "checkpoint/layout.h"
#include "checkpoint/posix_file_system.h"
#include "checkpoint/writer.h"
#include "protocol/transport/steady_clock.h"
#include "worker/client/fork_guard.h"
#include "worker/client/options.h"
#include "worker/client/state_transfer.h"

namespace muster::worker {

namespace {

// After the last step: how long the last checkpoint may take to count.
constexpr Duration kSavePatience = Duration::Seconds(120);
// What Finish() grants the coordinator beyond the lease.
constexpr Duration kFinishPatience = Duration::Seconds(10);
// After this long in BeginStep a line says what is waited for.
constexpr Duration kSayAfter = Duration::Seconds(1);
// For a small kernel, after an error that may be the device's.
constexpr Duration kDeviceCheckLimit = Duration::Seconds(5);

}  // namespace

Result<std::unique_ptr<Runner>> Runner::Start(const WorkerOptions& options,
                                              std::shared_ptr<StateTable> table) {
  MUSTER_RETURN_IF_ERROR(CheckOptions(options, *table));
  auto fs = std::make_unique<checkpoint::PosixFileSystem>();
  std::optional<Found> found;
  if (!options.checkpoint_directory.empty()) {
    MUSTER_RETURN_IF_ERROR(checkpoint::CheckRoot(*fs, options.checkpoint_directory));
    auto discovered =
        checkpoint::DiscoverCheckpoints(*fs, options.checkpoint_directory, JobName(options.job));
    if (!discovered.ok()) return discovered.status();
    found = *std::move(discovered);
  }
  Result<TcpListener> listener = TcpListener::Bind(Endpoint{options.data_address, 0});
  if (!listener.ok()) return listener.status();
  Identity identity = IdentityOf(options, *table);
  identity.found = std::move(found);
  Endpoint advertised{options.data_address, listener->address().port};
  identity.address =
      options.data_address.empty() ? fmt::format(":{}", advertised.port) : advertised.ToString();
  const Result<Backend> backend = BackendOf(options);
  if (!backend.ok()) return backend.status();
  identity.spec.backend = *backend;
  const std::int64_t elements =
      options.gradient_elements > 0 ? options.gradient_elements : table->GradientElements();
  std::unique_ptr<Runner> runner(
      new Runner(std::move(identity), std::move(table), std::move(*listener), elements));
  runner->fs_ = std::move(fs);
  MUSTER_RETURN_IF_ERROR(runner->UseDevice(options));
  MUSTER_RETURN_IF_ERROR(runner->records_.Open(options.record_directory, runner->identity_.worker));
  MUSTER_RETURN_IF_ERROR(runner->Join(options.token, options.leave_on_sigterm));
  runner->flight_ = OpenFlight(options.flight_directory, runner->identity_);
  return runner;
}

Runner::Runner(Identity identity, std::shared_ptr<StateTable> table, TcpListener listener,
               std::int64_t gradient_elements)
    : identity_(std::move(identity)),
      table_(std::move(table)),
      gradient_elements_(gradient_elements),
      listener_(std::move(listener)) {
  const std::string& root = identity_.spec.checkpoint_directory;
  if (root.empty()) return;
  checkpoint::RootOwner self;
  self.job = identity_.job.value();
  self.host = HostName();
  self.pid = identity_.pid;
  self.since_unix_ms = static_cast<std::int64_t>(UnixMillisNow());
  root_claim_ = std::make_unique<checkpoint::RootClaim>(
      root, std::move(self), [root] { return checkpoint::OpenOwnerFile(root); });
}

Runner::~Runner() {
  // The state outlives this.
  if (table_->device() != nullptr) table_->device()->InterruptBy(nullptr);
  if (communicator_) communicator_->Abort();
  // Each uses the other: first the one that takes in work.
  if (control_) control_->Halt();
  saver_.reset();
  if (root_claim_) ForgetInChildren(root_claim_->descriptor());
}

Status Runner::Join(const std::string& token, bool leave_on_sigterm) {
  ControlThread::Hooks hooks;
  hooks.manifest = [this](WriteManifest request) { saver_->Write(std::move(request)); };
  hooks.removal = [this](RemoveCheckpoint request) { saver_->Remove(std::move(request)); };
  hooks.sweep = [this](SweepCheckpoints request) { saver_->Sweep(std::move(request)); };
  hooks.look = [this]() -> Result<std::optional<Found>> {
    const std::string& root = identity_.spec.checkpoint_directory;
    if (root.empty()) return std::optional<Found>();
    return checkpoint::DiscoverCheckpoints(*fs_, root, identity_.job);
  };
  control_ = std::make_unique<ControlThread>(
      ControlThread::Options{identity_, token, leave_on_sigterm}, std::move(hooks));
  saver_ = std::make_unique<Saver>(std::make_unique<checkpoint::PosixFileSystem>(),
                                   identity_.spec.checkpoint_directory, [this](Message message) {
                                     const ControlThread::Lock lock = control_->Acquire();
                                     control_->Hand(Report{std::move(message)});
                                   });
  if (table_->device() != nullptr) table_->device()->InterruptBy(&control_->interrupted);
  control_->Start();
  ControlThread::Lock lock = control_->Acquire();
  while (!control_->session().joined() && !control_->session().ended()) control_->Wait(lock);
  if (control_->session().ended()) {
    const Status status = control_->session().status();
    // A job that has ended already is no error, and it gives no step.
    if (!status.ok()) return status;
  }
  table_->Seal();
  return {};
}

Status Runner::status() const {
  if (!misuse_.ok()) return misuse_;
  const ControlThread::Lock lock = control_->Acquire();
  return control_->session().status();
}

Step Runner::committed() const {
  const ControlThread::Lock lock = control_->Acquire();
  return control_->session().committed();
}

TrainingStep* Runner::BeginStep() {
  if (progress_ == Progress::kReduced && step_->status().ok()) {
    Misuse(*step_, FailedPrecondition(fmt::format(
                       "step {}: BeginStep() was called after Reduce(), without Commit()",
                       step_->number().value())));
  }
  progress_ = Progress::kNone;
  if (!misuse_.ok() || finished_) return nullptr;
  bool said = false;
  ControlThread::Lock lock = control_->Acquire();
  control_->Hand(AtBoundary{});
  for (;;) {
    const Session& session = control_->session();
    if (session.started_record() != nullptr) {
      table_->AdoptCut(session.started_record()->generation);
    }
    if (const std::optional<CheckpointKey> key = session.snapshot_due()) {
      const bool needed = session.snapshot_needed();
      lock.unlock();
      TakeSnapshotFor(*key, needed);
      lock.lock();
      control_->Hand(SnapshotTaken{});
      continue;
    }
    switch (session.Next(MonotonicNow())) {
      case Directive::kEnd: return nullptr;
      case Directive::kWait: WaitSaidOnce(lock, &said); break;
      case Directive::kForm: {
        const GenerationRecord record = *session.assigned();
        lock.unlock();
        Form(record);
        lock.lock();
        break;
      }
      case Directive::kTrain:
      case Directive::kFinish: {
        const bool train = session.Next(MonotonicNow()) == Directive::kTrain;
        const bool fresh = record_.generation != session.started_record()->generation;
        record_ = *session.started_record();
        rank_ = session.RankIn(record_);
        member_ = session.member();
        lock.unlock();
        if (fresh) PrepareSaves();
        control_->in_operation = true;
        const Status status = GatherDerived(*table_, *communicator_);
        control_->in_operation = false;
        if (!status.ok()) {
          OperationFailedWith(status);
        } else if (!train) {
          FinishSteps();
        } else if (OpenStep()) {
          return step_.get();
        }
        lock.lock();
        break;
      }
    }
  }
}

void Runner::WaitSaidOnce(ControlThread::Lock& lock, bool* said) {
  if (*said) return control_->Wait(lock);
  if (control_->WaitFor(lock, kSayAfter)) return;
  *said = true;
  const Session& session = control_->session();
  std::fprintf(stderr, "muster: worker %s at step %lld waits for %s\n", name().c_str(),
               static_cast<long long>(session.committed().value()),
               session.assigned() != nullptr         ? "the other members of the new generation"
               : session.started_record() == nullptr ? "a generation to be formed with it"
                                                     : "the coordinator's word");
}

void Runner::TakeSnapshotFor(const CheckpointKey& key, bool needed) {
  checkpoint::ShardPlan plan;
  plan.job = identity_.job.value();
  plan.key = key;
  {
    const ControlThread::Lock lock = control_->Acquire();
    const GenerationRecord* record = control_->session().started_record();
    // Fenced meanwhile: there is nothing to save any more.
    if (record == nullptr || record->generation != key.generation) return;
    plan.lineage = record->lineage;
    plan.rank = control_->session().RankIn(*record);
    plan.world_size = record->world_size();
  }
  plan.tensors = identity_.spec.tensors;
  const Rank rank = plan.rank;
  if (needed) saver_->AwaitIdle(kSavePatience);
  const Status problem = saver_->Save(*table_, std::move(plan));
  if (problem.ok()) {
    last_save_ = key;
    return;
  }
  const ControlThread::Lock lock = control_->Acquire();
  control_->Hand(Report{ShardFailed{key, rank, problem.code(), problem.message()}});
}

void Runner::PrepareSaves() {
  if (identity_.spec.checkpoint_directory.empty() || identity_.spec.checkpoint_every == 0) return;
  const auto layout = checkpoint::LayoutOf(identity_.spec.tensors, rank_, record_.world_size(), {});
  if (layout.ok() && !layout->empty()) {
    saver_->Prepare(layout->back().end, table_->SnapshotMemory());
  }
}

MicroBatch Runner::MakeMicroBatch(Step number, const StepBatch& batch, std::int32_t index) const {
  const SampleOrder order(identity_.spec.seed, batch.epoch, identity_.spec.samples);
  const Range positions = PositionsOf(batch, index);
  std::vector<std::int64_t> samples;
  samples.reserve(static_cast<std::size_t>(positions.size()));
  for (std::int64_t p = positions.lo; p < positions.hi; ++p) samples.push_back(order.At(p));
  return {index, SeedOf(identity_.spec, number, index), std::move(samples)};
}

bool Runner::OpenStep() {
  Step number;
  {
    const ControlThread::Lock lock = control_->Acquire();
    const Session& session = control_->session();
    if (session.Next(MonotonicNow()) != Directive::kTrain) return false;
    number = session.committed().Next();
    control_->Hand(StepOpened{});
  }
  step_.reset(new TrainingStep(*this));
  step_->number_ = number;
  batch_ = BatchOf(identity_.spec, number);
  ranges_.clear();
  for (std::int32_t r = 0; r < record_.world_size(); ++r) {
    ranges_.push_back(DealTo(batch_, Rank(r), record_.world_size()));
  }
  dealt_ = ranges_[static_cast<std::size_t>(rank_.value())];
  for (std::int64_t index = dealt_.lo; index < dealt_.hi; ++index) {
    step_->micro_batches_.push_back(
        MakeMicroBatch(number, batch_, static_cast<std::int32_t>(index)));
  }
  if (scalars_ && scalars_->leaves() == batch_.micro_batches && scalars_->range() == dealt_) {
    scalars_->Clear();
  } else {
    scalars_.emplace(batch_.micro_batches, dealt_, 2);
  }
  added_ = 0;
  part_added_ = 0;
  broke_adding_ = false;
  if (const Status status = gradient_->Open(
          identity_.spec.backend == Backend::kNccl ? bare_communicator_ : communicator_,
          batch_.micro_batches, ranges_);
      !status.ok()) {
    OperationFailedWith(status);
    return false;
  }
  progress_ = Progress::kAdding;
  return true;
}

void Runner::FinishSteps() {
  StepEntry entry;
  {
    const ControlThread::Lock lock = control_->Acquire();
    entry = EntryOf(control_->session().committed());
  }
  if (records_.active()) {
    const Result<std::uint64_t> digest = table_->Digest();
    entry.digest = digest.ok() ? *digest : 0;
    const Status status = digest.ok() ? records_.WriteFinal(entry) : digest.status();
    if (!status.ok()) {
      std::fprintf(stderr, "muster: %s\n", status.message().c_str());
    }
  }
  AwaitSave();
  const ControlThread::Lock lock = control_->Acquire();
  if (control_->session().Running(record_.generation)) control_->Hand(StepsDone{});
}

// The last checkpoint is worth waiting for: it is the result of the whole run.
void Runner::AwaitSave() {
  if (!last_save_) return;
  const Instant deadline = MonotonicNow() + kSavePatience;
  ControlThread::Lock lock = control_->Acquire();
  for (;;) {
    const Session& session = control_->session();
    const Instant now = MonotonicNow();
    if (!session.Running(record_.generation) || now >= deadline) return;
    if (session.last_announced() >= last_save_ || session.last_aborted() == last_save_) return;
    control_->WaitFor(lock, deadline - now);
  }
}

bool Runner::GaveUpDevice(const Status& why) {
  Device* device = device_.get();
  if (device == nullptr && table_->device() != nullptr) device = &table_->device()->device();
  if (device == nullptr || identity_.spec.backend == Backend::kNccl) return false;
  if (why.code() != Code::kInternal && why.code() != Code::kDeadlineExceeded) return false;
  const Status health = device->Check(kDeviceCheckLimit);
  if (health.ok()) return false;
  std::fprintf(stderr, "muster: %s; this worker is given up\n", health.message().c_str());
  const ControlThread::Lock lock = control_->Acquire();
  control_->Hand(Unfit{health});
  return true;
}

void Runner::OperationFailedWith(const Status& status) {
  if (status.code() != Code::kInterrupted && !GaveUpDevice(status)) {
    const ControlThread::Lock lock = control_->Acquire();
    OperationBroke broke;
    broke.generation = record_.generation;
    broke.step = control_->session().committed().Next();
    broke.code = status.code();
    broke.reason = status.message().substr(0, kMaxReasonBytes);
    broke.peer = communicator_->failed_peer().value_or(Rank(-1));
    control_->Hand(broke);
  }
  communicator_->Abort();
}

void Runner::GiveUpStep(const std::string& reason) {
  {
    const ControlThread::Lock lock = control_->Acquire();
    OperationBroke broke;
    broke.generation = record_.generation;
    broke.step = control_->session().committed().Next();
    broke.code = Code::kFailedPrecondition;
    broke.reason = reason.substr(0, kMaxReasonBytes);
    control_->Hand(broke);
  }
  if (communicator_) communicator_->Abort();
}

Status Runner::Finish() {
  if (finished_) return *finished_;
  {
    ControlThread::Lock lock = control_->Acquire();
    const Session& session = control_->session();
    if (!session.ended()) {
      control_->Hand(FinishCalled{misuse_.ok() ? "Finish() was called" : misuse_.message()});
    }
    // When all workers finish here, the job ends without more ado. Otherwise the others wait for
    // this one in their next step; that step is void.
    const Duration lease = identity_.spec.failure_timeout;
    Instant deadline = MonotonicNow() + lease;
    bool gave_up = false;
    while (!session.ended()) {
      const Instant now = MonotonicNow();
      if (now >= deadline && gave_up) break;
      if (now >= deadline) {
        gave_up = true;
        deadline = now + kFinishPatience;
        lock.unlock();
        GiveUpStep("it has left the training loop");
        lock.lock();
        continue;
      }
      control_->WaitFor(lock, deadline - now);
    }
    finished_ =
        session.ended()
            ? session.status()
            : Unavailable(fmt::format("the coordinator at {} did not confirm the end of worker {}",
                                      identity_.url, name()));
  }
  if (!misuse_.ok()) finished_ = misuse_;
  if (communicator_) communicator_->Abort();
  control_->Stop();
  saver_.reset();
  if (finished_->ok()) flight_.Remove();
  return *finished_;
}

void Runner::BeginPhase(const std::string& name, Duration limit) {
  const ControlThread::Lock lock = control_->Acquire();
  control_->Hand(PhaseBegun{name.substr(0, kMaxNameBytes), MonotonicNow() + limit});
}

void Runner::EndPhase() {
  const ControlThread::Lock lock = control_->Acquire();
  control_->Hand(PhaseDone{});
}

std::vector<MicroBatch> Runner::Upcoming(int count) const {
  std::vector<MicroBatch> upcoming;
  if (!step_ || rank_.value() < 0) return upcoming;
  Step number = step_->number();
  for (int i = 0; i < count; ++i) {
    number = number.Next();
    if (identity_.spec.steps > 0 && number.value() > identity_.spec.steps) break;
    const StepBatch batch = BatchOf(identity_.spec, number);
    const Range dealt = DealTo(batch, rank_, record_.world_size());
    for (std::int64_t index = dealt.lo; index < dealt.hi; ++index) {
      upcoming.push_back(MakeMicroBatch(number, batch, static_cast<std::int32_t>(index)));
    }
  }
  return upcoming;
}

}  // namespace muster::worker
