// A few threads for work that is cut into many pieces: digests, copies, reads and writes of one
// file at several places at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "protocol/status.h"

namespace muster::checkpoint {

// Thread-safe.
class IoPool {
 public:
  // At most `threads` work at once on one call of ForEach, the caller among them, so that 1 means
  // no thread of its own. New threads have the caller's signal mask. When the system refuses
  // threads, the caller works alone. REQUIRES: threads >= 1
  explicit IoPool(int threads = kDefaultThreads);
  // Waits for what its threads are in the middle of. REQUIRES: no ForEach runs.
  ~IoPool();
  IoPool(const IoPool&) = delete;
  IoPool& operator=(const IoPool&) = delete;

  // Calls `work` for 0, 1, … count - 1, each once, on several threads at once, and returns when all
  // calls have returned. After an error none is begun that was not; of several errors it is the one
  // of the lowest index, as if the work had been done in order. The caller works too, and waits
  // only for calls that have begun: what others do with the pool, or calls of ForEach within
  // `work`, cannot make it wait for ever. `work` must not throw.
  Status ForEach(std::int64_t count, const std::function<Status(std::int64_t)>& work);

  // Enough requests at once for a fast disk while others of them are being verified and copied.
  static constexpr int kDefaultThreads = 8;

 private:
  struct Threads;
  const int helpers_;
  std::unique_ptr<Threads> threads_;
};

}  // namespace muster::checkpoint
