#include "tests/gpu/double/double_streams.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "tests/gpu/double/double_hooks.h"

namespace muster::gpu_double {
namespace {

// Low enough to be no address of anything, high enough to be none of the special streams.
constexpr std::uint64_t kHandleStep = 16;

template <class Handle>
std::uint64_t NumberOf(Handle handle) {
  return reinterpret_cast<std::uint64_t>(handle);
}

// Null, cudaStreamLegacy and cudaStreamPerThread are one stream to the double.
bool IsDefault(cudaStream_t handle) { return NumberOf(handle) < kHandleStep; }

}  // namespace

Streams& Streams::Get() {
  static Streams& streams = *new Streams;
  return streams;
}

std::shared_ptr<Streams::Stream> Streams::Start() {
  auto stream = std::make_shared<Stream>();
  running_.push_back(stream);
  std::thread([this, stream] { Run(stream); }).detach();
  return stream;
}

void Streams::Run(const std::shared_ptr<Stream>& stream) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !stream->queue.empty() || stream->destroyed; });
    if (stream->queue.empty()) break;
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    const bool broken = context_error_ != cudaSuccess;
    lock.unlock();
    if (!broken) work();
    work = nullptr;  // what it holds is let go outside of the lock
    lock.lock();
    ++stream->done;
    changed_.notify_all();
  }
  std::erase(running_, stream);
}

std::shared_ptr<Streams::Stream> Streams::Find(cudaStream_t handle) {
  if (IsDefault(handle)) {
    std::shared_ptr<Stream>& stream = streams_[0];
    if (stream == nullptr) stream = Start();
    return stream;
  }
  const auto found = streams_.find(NumberOf(handle));
  if (found == streams_.end()) {
    Die("use of a stream that was destroyed or never made: " + std::to_string(NumberOf(handle)));
  }
  return found->second;
}

std::shared_ptr<Streams::Event> Streams::Find(cudaEvent_t handle) {
  const auto found = events_.find(NumberOf(handle));
  if (found == events_.end()) {
    Die("use of an event that was destroyed or never made: " + std::to_string(NumberOf(handle)));
  }
  return found->second;
}

std::uint64_t Streams::Append(Stream& stream, Work work, bool own) {
  if (stream.held > 0 && !own) {
    Die("work was put on a stream while NCCL is still putting its own there: wait until "
        "ncclCommGetAsyncError gives ncclSuccess");
  }
  stream.queue.push_back(std::move(work));
  changed_.notify_all();
  return ++stream.put;
}

cudaStream_t Streams::Create() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = ++handles_ * kHandleStep;
  streams_.emplace(number, Start());
  return reinterpret_cast<cudaStream_t>(number);
}

void Streams::Destroy(cudaStream_t handle) {
  const std::lock_guard lock(mutex_);
  if (IsDefault(handle)) Die("the default stream was destroyed");
  const std::shared_ptr<Stream> stream = Find(handle);
  if (stream->held > 0) Die("a stream was destroyed while NCCL is still putting work on it");
  stream->destroyed = true;
  streams_.erase(NumberOf(handle));
  changed_.notify_all();
}

void Streams::Put(cudaStream_t handle, Work work, bool own) {
  const std::lock_guard lock(mutex_);
  Append(*Find(handle), std::move(work), own);
}

void Streams::PutAndWait(cudaStream_t handle, Work work) {
  std::unique_lock lock(mutex_);
  const std::shared_ptr<Stream> stream = Find(handle);
  const std::uint64_t place = Append(*stream, std::move(work), false);
  changed_.wait(lock, [&] { return stream->done >= place || context_error_ != cudaSuccess; });
}

bool Streams::Idle(cudaStream_t handle) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Stream> stream = Find(handle);
  return stream->done == stream->put;
}

void Streams::Hold(cudaStream_t handle, int change) {
  const std::lock_guard lock(mutex_);
  Find(handle)->held += change;
}

cudaEvent_t Streams::CreateEvent() {
  const std::lock_guard lock(mutex_);
  const std::uint64_t number = ++handles_ * kHandleStep;
  events_.emplace(number, std::make_shared<Event>());
  return reinterpret_cast<cudaEvent_t>(number);
}

void Streams::DestroyEvent(cudaEvent_t handle) {
  const std::lock_guard lock(mutex_);
  static_cast<void>(Find(handle));
  events_.erase(NumberOf(handle));
}

void Streams::Record(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Event> state = Find(event);
  const std::uint64_t number = ++state->recorded;
  Append(
      *Find(stream),
      [this, state = std::move(state), number] {
        const std::lock_guard inner(mutex_);
        state->passed = std::max(state->passed, number);
        changed_.notify_all();
      },
      false);
}

bool Streams::Passed(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  const std::shared_ptr<Event> state = Find(event);
  return state->passed == state->recorded;
}

void Streams::WaitFor(cudaStream_t stream, cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Event> state = Find(event);
  const std::uint64_t number = state->recorded;
  Append(
      *Find(stream),
      [this, state = std::move(state), number] {
        std::unique_lock inner(mutex_);
        changed_.wait(inner,
                      [&] { return state->passed >= number || context_error_ != cudaSuccess; });
      },
      false);
}

void Streams::WaitDevice() {
  std::unique_lock lock(mutex_);
  std::vector<std::pair<std::shared_ptr<Stream>, std::uint64_t>> waits;
  for (const std::shared_ptr<Stream>& stream : running_) waits.emplace_back(stream, stream->put);
  for (const auto& [stream, place] : waits) {
    changed_.wait(lock, [&] { return stream->done >= place || context_error_ != cudaSuccess; });
  }
}

void Streams::Hang() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return context_error_ != cudaSuccess; });
}

void Streams::BreakContext(cudaError_t error) {
  const std::lock_guard lock(mutex_);
  if (context_error_ == cudaSuccess) context_error_ = error;
  changed_.notify_all();
}

cudaError_t Streams::context_error() {
  const std::lock_guard lock(mutex_);
  return context_error_;
}

}  // namespace muster::gpu_double
