// What one operation does while it occupies its stream. TEST CODE.
#include <memory>
#include <utility>

#include "tests/gpu/double/double_collectives.h"
#include "tests/gpu/double/double_comm.h"
#include "tests/gpu/double/double_hooks.h"

namespace muster::gpu_double {

class Runner {
 public:
  Runner(std::shared_ptr<Comm> comm, Operation operation, std::uint64_t ticket)
      : comm_(std::move(comm)), operation_(std::move(operation)), ticket_(ticket) {}

  void Run() {
    bool completed = false;
    if (WaitForTurn()) {
      completed = !Interfered() && Complete();
      if (!completed) static_cast<void>(comm_->abort_.Wait());  // as a kernel spins
    }
    const Moment moment = comm_->MomentOf(operation_.number);
    if (!completed || Struck("collective-wrong", moment) != nullptr) {
      FillWithGarbage(operation_, comm_->rank_, comm_->world_size_);
    }
    const std::lock_guard lock(comm_->mutex_);
    comm_->running_ = false;
    ++comm_->turn_;
    comm_->changed_.notify_all();
  }

 private:
  // Operations of one communicator run one after the other, whatever their streams. False when
  // everything was aborted meanwhile.
  bool WaitForTurn() {
    std::unique_lock lock(comm_->mutex_);
    comm_->changed_.wait(lock, [&] { return comm_->turn_ == ticket_ || comm_->abort_.raised(); });
    if (comm_->abort_.raised()) return false;
    comm_->running_ = true;
    return true;
  }

  // Faults that keep the operation from making any progress.
  bool Interfered() {
    const Moment moment = comm_->MomentOf(operation_.number);
    if (Struck("collective-hang", moment) != nullptr) return true;
    const Fault* const fault = Struck("async-error", moment);
    if (fault == nullptr) return false;
    SetError(ErrorOf(*fault, ncclRemoteError));
    comm_->stop_.Raise();
    return true;
  }

  bool Complete() {
    int gone = -1;
    const Outcome outcome = Perform(operation_, comm_->rank_, comm_->data_, comm_->stop_, &gone);
    if (outcome != Outcome::kPeerGone) return outcome == Outcome::kDone;
    // In NCCL's ring, a rank hears of its neighbours only.
    const int size = comm_->world_size_;
    const int distance = (gone - comm_->rank_ + size) % size;
    const std::string profile = Environment("MUSTER_DOUBLE_PEER_DEATH", "told");
    if (profile == "silent" || (distance != 1 && distance != size - 1)) return false;
    const long ms = profile == "told" ? 0 : EnvironmentNumber("MUSTER_DOUBLE_PEER_DEATH", 0);
    if (!comm_->abort_.Wait(static_cast<int>(ms))) SetError(ncclRemoteError);
    return false;
  }

  void SetError(ncclResult_t error) {
    const std::lock_guard lock(comm_->mutex_);
    if (comm_->async_error_ == ncclSuccess) comm_->async_error_ = error;
  }

  const std::shared_ptr<Comm> comm_;
  const Operation operation_;
  const std::uint64_t ticket_;
};

void PutOnStream(std::shared_ptr<Comm> comm, const Operation& operation, std::uint64_t ticket) {
  auto* const runner = new Runner(std::move(comm), operation, ticket);
  muster_double_enqueue(
      operation.stream,
      [](void* argument) {
        const std::unique_ptr<Runner> owned(static_cast<Runner*>(argument));
        owned->Run();
      },
      runner);
}

}  // namespace muster::gpu_double
