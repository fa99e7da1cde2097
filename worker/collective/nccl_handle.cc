#include "worker/collective/nccl_handle.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <chrono>

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

// How long the device may take to show that it computes after an abort, and for what was put on the
// stream to end.
constexpr Duration kCheckLimit = Duration::Seconds(5);

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
  Shared(const NcclApi& nccl, std::shared_ptr<Device> gpu, void* work, NcclOptions chosen,
         std::string who)
      : api(nccl),
        device(std::move(gpu)),
        stream(work),
        options(std::move(chosen)),
        name(std::move(who)) {}

  const NcclApi& api;
  const std::shared_ptr<Device> device;
  void* const stream;
  const NcclOptions options;
  const std::string name;
  std::atomic<bool> interrupted = false;

  std::timed_mutex call_mutex;  // held during a call; guards the next two
  ncclComm_t communicator = nullptr;
  std::atomic<bool> closed = false;

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

NcclHandle::NcclHandle(const NcclApi& api, std::shared_ptr<Device> device, void* stream,
                       NcclOptions options, std::string name)
    : shared_(new Shared(api, std::move(device), stream, std::move(options), std::move(name))) {
  // A signal that interrupts NCCL's accept() would fail its bootstrap.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  guard_ = std::thread([shared = shared_] { Guard(shared); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

NcclHandle::~NcclHandle() {
  Abort();
  if (AwaitAborted(shared_->options.abort_hard_deadline).code() == Code::kDeadlineExceeded) {
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
  const std::scoped_lock lock(shared_->call_mutex);
  if (shared_->closed || shared_->interrupted) {
    return Interrupted(fmt::format("{}: the communicator was aborted", shared_->name));
  }
  const ncclResult_t result = call(shared_->communicator);
  if (result == ncclSuccess || result == ncclInProgress) return {};
  return shared_->Error(what, result, shared_->communicator);
}

Result<bool> NcclHandle::Ready() {
  const std::scoped_lock lock(shared_->call_mutex);
  if (shared_->closed || shared_->interrupted) {
    return Interrupted(fmt::format("{}: the communicator was aborted", shared_->name));
  }
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
    std::unique_lock call(shared->call_mutex, Nanos(shared->options.abort_soft_deadline));
    if (!call.owns_lock()) {
      shared->Say(
          fmt::format("{}: a call of NCCL does not return; aborting beside it", shared->name));
    }
    shared->closed = true;
    std::swap(communicator, shared->communicator);
  }
  if (communicator != nullptr) (void)shared->api.CommAbort(communicator);
  // Buffers are free once nothing is left on the stream.
  const Status ended = shared->device->Adopt(shared->stream)->Wait(kCheckLimit, nullptr);
  Status health = shared->device->Check(kCheckLimit);
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
