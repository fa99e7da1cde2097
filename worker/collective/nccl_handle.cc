#include "worker/collective/nccl_handle.h"

#include <fmt/format.h>

#include <chrono>

#include "protocol/check.h"
#include "worker/collective/signals_blocked.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::nanoseconds Nanos(Duration duration) {
  return std::chrono::nanoseconds(duration.nanos());
}

Code CodeOf(ncclResult_t result) {
  switch (result) {
    case ncclInvalidArgument:
    case ncclInvalidUsage: return Code::kInvalidArgument;
    case ncclUnhandledCudaError: return Code::kInternal;
    // A peer's end can show as any other error.
    default: return Code::kUnavailable;
  }
}

}  // namespace

struct NcclHandle::Shared {
  Shared(const NcclApi& nccl, std::shared_ptr<Device> gpu, std::shared_ptr<DeviceStream> work,
         NcclOptions chosen, std::string who)
      : api(nccl),
        device(std::move(gpu)),
        stream(std::move(work)),
        options(std::move(chosen)),
        name(std::move(who)) {}

  const NcclApi& api;
  const std::shared_ptr<Device> device;
  const std::shared_ptr<DeviceStream> stream;  // the guard makes use of its handle alone
  const NcclOptions options;
  const std::string name;
  std::atomic<bool> interrupted = false;

  ncclComm_t communicator = nullptr;  // of the call that is inside, and then of the guard

  std::mutex call_mutex;  // guards the next two
  std::condition_variable call_over;
  bool calling = false;
  bool closed = false;  // the guard has come: there is no further call

  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  Clock::time_point requested;  // once `interrupted`
  bool slow = false;            // the soft deadline has passed, and that was said
  bool done = false;
  Status health;

  [[nodiscard]] Status Error(const char* what, ncclResult_t result, ncclComm_t of) const {
    const char* last = of == nullptr ? nullptr : api.GetLastError(of);
    std::string detail = last == nullptr || *last == '\0' ? "" : fmt::format(": {}", last);
    // The mistake that is made first of all.
    if (detail.find("Duplicate GPU") != std::string::npos) {
      detail += "; each worker of a host needs a GPU of its own, as LOCAL_RANK numbers them";
    }
    return {CodeOf(result),
            fmt::format("NCCL: {} ({}): {}{}", what, name, api.GetErrorString(result), detail)};
  }
  void Say(const std::string& line) const {
    if (options.say) options.say(line);
  }
};

// A call's time inside.
class NcclHandle::Inside {
 public:
  explicit Inside(Shared& shared) : shared_(shared) {
    const std::scoped_lock lock(shared_.call_mutex);
    if (shared_.closed || shared_.interrupted) return;
    MUSTER_CHECK(!shared_.calling, "one thread makes the calls");
    entered_ = shared_.calling = true;
  }
  ~Inside() {
    if (!entered_) return;
    {
      const std::scoped_lock lock(shared_.call_mutex);
      shared_.calling = false;
    }
    shared_.call_over.notify_all();
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  // Ok when the call may be made.
  [[nodiscard]] Status status() const {
    if (entered_) return {};
    return Interrupted(fmt::format("{}: the communicator was aborted", shared_.name));
  }

 private:
  Shared& shared_;
  bool entered_ = false;
};

NcclHandle::NcclHandle(const NcclApi& api, std::shared_ptr<Device> device,
                       std::shared_ptr<DeviceStream> stream, NcclOptions options, std::string name)
    : shared_(new Shared(api, std::move(device), std::move(stream), std::move(options),
                         std::move(name))) {
  const SignalsBlocked blocked;
  guard_ = std::thread([shared = shared_] { Guard(shared); });
}

NcclHandle::~NcclHandle() {
  Abort();
  static_cast<void>(AwaitAborted(shared_->options.abort_hard_deadline));
  if (stuck()) {
    shared_->Say(fmt::format("{}: its NCCL communicator is left behind unaborted", shared_->name));
  }
  bool done = false;
  {
    const std::scoped_lock lock(shared_->mutex);
    done = shared_->done;
  }
  if (done) {
    guard_.join();
  } else {
    guard_.detach();
  }
}

Status NcclHandle::Call(const char* what, const std::function<ncclResult_t(ncclComm_t&)>& call) {
  const Inside inside(*shared_);
  MUSTER_RETURN_IF_ERROR(inside.status());
  // A signal that interrupts an accept() of the threads that NCCL starts would fail its bootstrap.
  const SignalsBlocked blocked;
  const ncclResult_t result = call(shared_->communicator);
  if (result == ncclSuccess || result == ncclInProgress) return {};
  return shared_->Error(what, result, shared_->communicator);
}

Result<bool> NcclHandle::Ready() {
  const Inside inside(*shared_);
  MUSTER_RETURN_IF_ERROR(inside.status());
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = shared_->api.CommGetAsyncError(shared_->communicator, &state);
  if (result != ncclSuccess) {
    return shared_->Error("asking for errors", result, shared_->communicator);
  }
  if (state == ncclInProgress) return false;
  if (state != ncclSuccess) {
    return shared_->Error("the communicator has failed", state, shared_->communicator);
  }
  return true;
}

void NcclHandle::Abort() {
  {
    const std::scoped_lock lock(shared_->mutex);
    if (shared_->interrupted.exchange(true)) return;
    shared_->requested = Clock::now();
  }
  shared_->changed.notify_all();
}

const std::atomic<bool>& NcclHandle::interrupted() const { return shared_->interrupted; }

bool NcclHandle::stuck() const {
  const std::scoped_lock lock(shared_->mutex);
  return shared_->interrupted && !shared_->done &&
         Clock::now() >= shared_->requested + Nanos(shared_->options.abort_hard_deadline);
}

bool NcclHandle::overdue() const {
  const std::scoped_lock lock(shared_->mutex);
  return shared_->interrupted &&
         Clock::now() >= shared_->requested + Nanos(shared_->options.abort_hard_deadline);
}

Status NcclHandle::AwaitAborted(Duration limit) {
  Shared& shared = *shared_;
  std::unique_lock lock(shared.mutex);
  const auto end = Clock::now() + Nanos(limit);
  const auto soft = shared.requested + Nanos(shared.options.abort_soft_deadline);
  const auto hard = shared.requested + Nanos(shared.options.abort_hard_deadline);
  while (!shared.done) {
    const auto now = Clock::now();
    if (now >= soft && !shared.slow) {
      shared.slow = true;
      shared.Say(
          fmt::format("{}: aborting the NCCL communicator takes longer than {:.1f} s; another rank "
                      "on this host "
                      "that has neither aborted nor ended, or the driver, can hold it up",
                      shared.name, shared.options.abort_soft_deadline.ToSeconds()));
    }
    if (now >= hard) {
      return Internal(fmt::format("the NCCL communicator could not be aborted within {:.1f} s ({})",
                                  shared.options.abort_hard_deadline.ToSeconds(), shared.name));
    }
    if (now >= end) return DeadlineExceeded("the abort is not done yet");
    shared.changed.wait_until(lock, std::min(shared.slow ? hard : soft, end));
  }
  return shared.health;
}

void NcclHandle::Guard(const std::shared_ptr<Shared>& shared) {
  {
    std::unique_lock lock(shared->mutex);
    shared->changed.wait(lock, [&] { return shared->interrupted.load(); });
  }
  ncclComm_t communicator = nullptr;
  {
    // The calls do not block, so this takes no time; a call that does all the same must not keep
    // the abort away, which is what would free it.
    std::unique_lock lock(shared->call_mutex);
    if (!shared->call_over.wait_for(lock, Nanos(shared->options.abort_soft_deadline),
                                    [&] { return !shared->calling; })) {
      shared->Say(
          fmt::format("{}: a call of NCCL does not return; aborting beside it", shared->name));
    }
    shared->closed = true;
    std::swap(communicator, shared->communicator);
  }
  if (communicator != nullptr) (void)shared->api.CommAbort(communicator);
  // Buffers are free once nothing is left on the stream. It may wait for a loop that has put
  // seconds of work on the device, which is no fault of the device: only the hard deadline, which
  // passes before this limit, ends that.
  const Duration limit = shared->options.abort_hard_deadline;
  const Status ended = shared->device->Adopt(shared->stream->native())->Wait(limit, nullptr);
  Status health = shared->device->Check(limit);
  if (health.ok()) health = ended;
  if (!health.ok()) {
    health = Internal(fmt::format("{} after an abort ({})", health.message(), shared->name));
  }
  {
    const std::scoped_lock lock(shared->mutex);
    shared->health = std::move(health);
    shared->done = true;
  }
  shared->changed.notify_all();
}

}  // namespace muster
