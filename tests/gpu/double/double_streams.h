// Streams and events of the CUDA double. TEST CODE.
//
// A stream is a thread that runs what was put on it, in order. Handles are numbers that are never
// used again, so a use after destruction is always seen, and dies.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace muster::gpu_double {

// Thread-safe. One mutex for everything: the double is to be right, not fast.
class Streams {
 public:
  using Work = std::function<void()>;

  // The one of this process; never destroyed, for its threads outlive main().
  static Streams& Get();

  [[nodiscard]] cudaStream_t Create();
  // What lies on it still runs.
  void Destroy(cudaStream_t handle);
  // Dies when the stream is held and `own` (the double's own work) is not set.
  void Put(cudaStream_t handle, Work work, bool own = false);
  // Puts work and waits until it has run, or the context breaks.
  void PutAndWait(cudaStream_t handle, Work work);
  [[nodiscard]] bool Idle(cudaStream_t handle);
  void Hold(cudaStream_t handle, int change);

  [[nodiscard]] cudaEvent_t CreateEvent();
  void DestroyEvent(cudaEvent_t handle);
  void Record(cudaEvent_t event, cudaStream_t stream);
  // The event's latest record; one never recorded has passed.
  [[nodiscard]] bool Passed(cudaEvent_t event);
  void WaitFor(cudaStream_t stream, cudaEvent_t event);

  // Until all work that lies on all streams now has run, or the context breaks.
  void WaitDevice();
  // Never comes back, unless the context breaks. For use within a stream's work.
  void Hang();

  void BreakContext(cudaError_t error);
  [[nodiscard]] cudaError_t context_error();

 private:
  struct Stream {
    std::deque<Work> queue;
    std::uint64_t put = 0;
    std::uint64_t done = 0;
    int held = 0;
    bool destroyed = false;
  };
  struct Event {
    std::uint64_t recorded = 0;
    std::uint64_t passed = 0;
  };
  Streams() = default;
  void Run(const std::shared_ptr<Stream>& stream);
  // All with mutex_ held.
  std::shared_ptr<Stream> Start();
  std::shared_ptr<Stream> Find(cudaStream_t handle);
  std::shared_ptr<Event> Find(cudaEvent_t handle);
  std::uint64_t Append(Stream& stream, Work work, bool own);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t handles_ = 0;  // how many were given away
  std::map<std::uint64_t, std::shared_ptr<Stream>> streams_;
  std::map<std::uint64_t, std::shared_ptr<Event>> events_;
  std::vector<std::shared_ptr<Stream>> running_;  // those with a thread, destroyed ones included
  cudaError_t context_error_ = cudaSuccess;
};

}  // namespace muster::gpu_double
