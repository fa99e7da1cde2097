// Tells all of a server's running tasks to stop, and says when the last one has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

namespace muster {

// Confined to one thread. A task enters with what cancels it, and leaves when the Ticket that it
// got is destroyed; tickets may outlive the group.
class TaskGroup {
 public:
  // Movable; its end is the end of the task.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept;
    Ticket& operator=(Ticket&& other) noexcept;
    ~Ticket() { Leave(); }

   private:
    friend class TaskGroup;
    struct State;
    Ticket(std::weak_ptr<State> state, std::uint64_t number)
        : state_(std::move(state)), number_(number) {}
    void Leave();
    std::weak_ptr<State> state_;
    std::uint64_t number_ = 0;
  };

  TaskGroup();
  ~TaskGroup();
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  // `cancel` is called at most once, by CancelAll; it may end the task (destroy the ticket) at once
  // or later. Once CancelAll was called it is called before Enter returns.
  [[nodiscard]] Ticket Enter(std::function<void()> cancel);
  void CancelAll();
  [[nodiscard]] std::size_t size() const;
  // `done` is called once, when there is no task left: at once if there is none now.
  void WhenEmpty(std::function<void()> done);

 private:
  std::shared_ptr<Ticket::State> state_;
};

}  // namespace muster
