#include "protocol/transport/task_group.h"

#include <utility>
#include <vector>

namespace muster {

struct TaskGroup::Ticket::State {
  std::map<std::uint64_t, std::function<void()>> tasks;
  std::uint64_t next = 1;
  bool cancelled = false;
  std::function<void()> done;
};

TaskGroup::Ticket::Ticket(Ticket&& other) noexcept
    : state_(std::exchange(other.state_, {})), number_(std::exchange(other.number_, 0)) {}

TaskGroup::Ticket& TaskGroup::Ticket::operator=(Ticket&& other) noexcept {
  if (this != &other) {
    Leave();
    state_ = std::exchange(other.state_, {});
    number_ = std::exchange(other.number_, 0);
  }
  return *this;
}

void TaskGroup::Ticket::Leave() {
  const std::shared_ptr<State> state = state_.lock();
  state_.reset();
  if (state == nullptr || state->tasks.erase(number_) == 0) return;
  if (state->tasks.empty() && state->done) std::exchange(state->done, nullptr)();
}

TaskGroup::TaskGroup() : state_(std::make_shared<Ticket::State>()) {}

TaskGroup::~TaskGroup() = default;

TaskGroup::Ticket TaskGroup::Enter(std::function<void()> cancel) {
  const std::uint64_t number = state_->next++;
  if (state_->cancelled) {
    state_->tasks.emplace(number, nullptr);
    cancel();
  } else {
    state_->tasks.emplace(number, std::move(cancel));
  }
  return Ticket(state_, number);
}

void TaskGroup::CancelAll() {
  const std::shared_ptr<Ticket::State> state = state_;
  state->cancelled = true;
  // A cancelled task may leave at once, and so may others with it: never iterate over the map.
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, cancel] : state->tasks) numbers.push_back(number);
  for (const std::uint64_t number : numbers) {
    const auto task = state->tasks.find(number);
    if (task == state->tasks.end() || !task->second) continue;
    std::exchange(task->second, nullptr)();
  }
}

std::size_t TaskGroup::size() const { return state_->tasks.size(); }

void TaskGroup::WhenEmpty(std::function<void()> done) {
  if (state_->tasks.empty()) {
    done();
  } else {
    state_->done = std::move(done);
  }
}

}  // namespace muster
