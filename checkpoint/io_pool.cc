#include "checkpoint/io_pool.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "protocol/check.h"

namespace muster::checkpoint {
namespace {

// One call of ForEach. Helpers that come after it has ended find nothing to do.
class Task {
 public:
  Task(std::int64_t count, const std::function<Status(std::int64_t)>& work)
      : count_(count), work_(work) {}

  // Takes part until nothing is left to begin.
  void Work() {
    std::unique_lock lock(mutex_);
    while (next_ < count_) {
      const std::int64_t index = next_++;
      ++running_;
      lock.unlock();
      Status status = work_(index);
      lock.lock();
      --running_;
      if (status.ok()) continue;
      next_ = count_;
      if (failed_ < 0 || index < failed_) {
        failed_ = index;
        status_ = std::move(status);
      }
    }
    if (running_ == 0) ended_.notify_all();
  }

  // Waits until what has begun has ended. REQUIRES: Work has returned here.
  Status Result() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return running_ == 0; });
    return status_;
  }

 private:
  const std::int64_t count_;
  const std::function<Status(std::int64_t)>& work_;  // not used once all indices are taken

  std::mutex mutex_;
  std::condition_variable ended_;
  std::int64_t next_ = 0;
  std::int64_t running_ = 0;
  std::int64_t failed_ = -1;  // the lowest index that failed
  Status status_;
};

}  // namespace

struct IoPool::Threads {
  explicit Threads(int count) : pool(static_cast<std::size_t>(count)) {}
  boost::asio::thread_pool pool;
};

IoPool::IoPool(int threads) : helpers_(threads - 1) {
  MUSTER_CHECK(threads >= 1, "the caller is a thread too");
  if (helpers_ == 0) return;
  try {
    threads_ = std::make_unique<Threads>(helpers_);
  } catch (const std::exception&) {
    threads_.reset();
  }
}

IoPool::~IoPool() {
  if (threads_) threads_->pool.join();
}

Status IoPool::ForEach(std::int64_t count, const std::function<Status(std::int64_t)>& work) {
  const auto task = std::make_shared<Task>(count, work);
  const std::int64_t helpers = threads_ ? std::min<std::int64_t>(helpers_, count - 1) : 0;
  for (std::int64_t i = 0; i < helpers; ++i) {
    boost::asio::post(threads_->pool, [task] { task->Work(); });
  }
  task->Work();
  return task->Result();
}

}  // namespace muster::checkpoint
