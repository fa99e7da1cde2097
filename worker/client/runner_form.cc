// Building a generation: its communicator, and the state.
#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "protocol/transport/steady_clock.h"
#include "worker/client/fork_guard.h"
#include "worker/client/runner.h"
#include "worker/client/state_transfer.h"
#include "worker/collective/gpu_backend.h"
#include "worker/collective/recorded_communicator.h"
#include "worker/collective/tcp_communicator.h"

namespace muster::worker {

namespace {

// Between two attempts to claim the checkpoint root.
constexpr Duration kClaimPause = Duration::Millis(50);

}  // namespace

Status Runner::UseDevice(const WorkerOptions& options) {
  device_ = options.device;
  abort_timeout_ = options.abort_timeout;
  // A loop may hand over gradients from the host's memory although its state lies on a device.
  if (device_ != nullptr && table_->device() != nullptr &&
      &table_->device()->device() != device_.get()) {
    return InvalidArgument(fmt::format(
        "the state lies on {}, but WorkerOptions::device is {}: give both the same device",
        table_->device()->device().name(), device_->name()));
  }
  if (device_ == nullptr) {
    gradient_ = MakeHostGradientSum(gradient_elements_);
    return {};
  }
  Result<std::unique_ptr<GradientSum>> gradient =
      identity_.spec.backend == Backend::kNccl
          ? MakeDeviceGradientSum(device_, gradient_elements_, flight_.ring())
          : MakeStagedGradientSum(device_, gradient_elements_);
  if (!gradient.ok()) return gradient.status();
  gradient_ = std::move(*gradient);
  std::fprintf(stderr, "muster: worker %s trains on %s; gradients go over %s\n", name().c_str(),
               device_->name().c_str(),
               identity_.spec.backend == Backend::kNccl ? NcclVersionText().c_str() : "TCP");
  return {};
}

Result<std::string> Runner::AwaitGroupId(const GenerationRecord& record) {
  ControlThread::Lock lock = control_->Acquire();
  const Instant deadline = MonotonicNow() + control_->session().forming_timeout();
  for (;;) {
    const Session& session = control_->session();
    if (session.assigned() == nullptr || session.assigned()->generation != record.generation) {
      return Interrupted("another generation is being formed");
    }
    if (const std::string* id = session.group_id()) return *id;
    if (session.mints_group_id()) {
      // Only now: an id that nobody comes for keeps a thread and a socket.
      lock.unlock();
      Result<std::string> id = MintNcclId();
      if (!id.ok()) return id.status();
      lock.lock();
      control_->Hand(IdMinted{record.generation, *id});
      continue;
    }
    const Instant now = MonotonicNow();
    if (now >= deadline) {
      return DeadlineExceeded(
          fmt::format("rank 0 ({}) has not given the id of generation {}'s communicator",
                      record.members.front().member.worker.value(), record.generation.value()));
    }
    control_->WaitFor(lock, deadline - now);
  }
}

Result<std::shared_ptr<Communicator>> Runner::MakeTcp(const GenerationRecord& record, Rank rank,
                                                      Duration forming, Duration progress) {
  TcpGroup group;
  group.job = identity_.job;
  group.lineage = record.lineage;
  group.generation = record.generation;
  group.rank = rank;
  for (const MemberEntry& member : record.members) {
    Result<Endpoint> endpoint = Endpoint::Parse(member.address);
    if (!endpoint.ok()) return endpoint.status();
    group.endpoints.push_back(std::move(*endpoint));
  }
  TcpOptions options;
  options.forming_deadline = forming;
  options.progress_deadline = progress;
  auto made = std::make_shared<TcpCommunicator>(listener_, std::move(group), options);
  connect_ = [made] { return made->Connect(); };
  return std::shared_ptr<Communicator>(made);
}

Result<std::shared_ptr<Communicator>> Runner::MakeNccl(const GenerationRecord& record, Rank rank,
                                                       Duration forming, Duration progress) {
  NcclGroup group;
  group.generation = record.generation;
  group.rank = rank;
  group.world_size = record.world_size();
  if (group.world_size > 1) {
    Result<std::string> id = AwaitGroupId(record);
    if (!id.ok()) return id.status();
    group.id = std::move(*id);
  }
  NcclOptions options;
  options.init_deadline = forming;
  options.progress_deadline = progress;
  options.abort_hard_deadline = abort_timeout_;
  options.abort_soft_deadline = abort_timeout_ * 2 / 3;
  options.say = [](const std::string& line) { std::fprintf(stderr, "muster: %s\n", line.c_str()); };
  auto made = MakeNcclCommunicator(device_, std::move(group), std::move(options));
  if (!made.ok()) return made.status();
  connect_ = [communicator = *made] { return communicator->Connect(); };
  return std::shared_ptr<Communicator>(*made);
}

Status Runner::MakeCommunicator(const GenerationRecord& record) {
  Rank rank;
  Duration forming;
  Duration progress;
  {
    const ControlThread::Lock lock = control_->Acquire();
    const Session& session = control_->session();
    rank = session.RankIn(record);
    forming = session.forming_timeout();
    progress = session.progress_timeout();
  }
  Result<std::shared_ptr<Communicator>> made = identity_.spec.backend == Backend::kNccl
                                                   ? MakeNccl(record, rank, forming, progress)
                                                   : MakeTcp(record, rank, forming, progress);
  if (!made.ok()) return made.status();
  const ControlThread::Lock lock = control_->Acquire();
  const Session& session = control_->session();
  // Taken back meanwhile: an abort that has been done already would miss the new communicator.
  if (session.assigned() == nullptr || session.assigned()->generation != record.generation) {
    return Interrupted("another generation is being formed");
  }
  bare_communicator_ = std::move(*made);
  communicator_ = std::make_shared<RecordedCommunicator>(bare_communicator_, flight_.ring(),
                                                         record.generation, record.lineage);
  control_->SetCommunicator(communicator_);
  return {};
}

void Runner::DropCommunicator() {
  connect_ = nullptr;
  {
    const ControlThread::Lock lock = control_->Acquire();
    control_->SetCommunicator(nullptr);
  }
  communicator_.reset();
  bare_communicator_.reset();
}

void Runner::Form(const GenerationRecord& record) {
  const Instant begun = MonotonicNow();
  DropCommunicator();
  {
    const ControlThread::Lock lock = control_->Acquire();
    const Session& session = control_->session();
    if (session.assigned() == nullptr || session.assigned()->generation != record.generation)
      return;
    control_->interrupted = false;
    control_->Hand(FormingBegun{});
  }
  Status status = MakeCommunicator(record);
  if (status.ok()) status = ClaimRoot(record);
  if (status.ok()) status = connect_();
  if (status.ok()) status = ProveCommunicator(*communicator_);
  const Instant connected = MonotonicNow();
  RestoreReport report;
  if (status.ok()) {
    report =
        RestoreState(*table_, *communicator_, record, *fs_, identity_.spec.checkpoint_directory);
    status = report.status;
  }
  if (record.restore.source != RestoreSource::kInitial) table_->MarkTrained();
  if (!status.ok()) {
    if (communicator_) communicator_->Abort();
    FormingFailedWith(record, status, report);
    return;
  }
  const ControlThread::Lock lock = control_->Acquire();
  control_->Hand(FormedHere{record.generation, (connected - begun).ToMillis(),
                            (MonotonicNow() - connected).ToMillis(), report.bytes});
}

void Runner::FormingFailedWith(const GenerationRecord& record, const Status& status,
                               const RestoreReport& report) {
  if (status.code() == Code::kInterrupted) return;
  {
    const ControlThread::Lock lock = control_->Acquire();
    FormFailed failure;
    failure.generation = record.generation;
    failure.code = status.code();
    failure.reason = status.message().substr(0, kMaxReasonBytes);
    if (communicator_) failure.peer = communicator_->failed_peer().value_or(Rank(-1));
    if (report.bad_checkpoint) failure.bad_checkpoint = record.restore.checkpoint;
    failure.contradicts = report.contradicts;
    failure.reading = report.reading;
    control_->Hand(FormBroke{std::move(failure)});
  }
  EndIfDeviceIsLost();
}

Status Runner::ClaimRoot(const GenerationRecord& record) {
  if (root_claim_ == nullptr) return {};
  for (;;) {
    const int before = root_claim_->descriptor();
    const auto answer = root_claim_->Claim(record.lineage, MonotonicNow());
    if (const int now = root_claim_->descriptor(); now != before) {
      ForgetInChildren(before);
      CloseInChildren(now);
    }
    switch (answer) {
      case checkpoint::RootClaim::Answer::kHeld: return {};
      // What this process lacks no further round will give it: it ends.
      case checkpoint::RootClaim::Answer::kRefused: return root_claim_->reason();
      case checkpoint::RootClaim::Answer::kLater: break;
      case checkpoint::RootClaim::Answer::kUnprotected:
        if (!std::exchange(unprotected_, true)) {
          std::fprintf(stderr, "muster: %s\n", root_claim_->reason().message().c_str());
        }
        return {};
    }
    ControlThread::Lock lock = control_->Acquire();
    const GenerationRecord* assigned = control_->session().assigned();
    if (assigned == nullptr || assigned->generation != record.generation) {
      return Interrupted("another generation is being formed");
    }
    control_->WaitFor(lock, kClaimPause);
  }
}

}  // namespace muster::worker
