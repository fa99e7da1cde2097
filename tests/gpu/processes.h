// Processes for tests of the doubles: each test runs its ranks in children of its own, so that one
// may be killed, and may die of a misuse, without the others.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace muster::gpu_double {

// The end of a child's, seen from within it.
class Child {
 public:
  Child(int rank, int size, int channel) : rank_(rank), size_(size), channel_(channel) {}
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  // A message to the test, at most 1000 bytes.
  void Tell(const std::string& message) const;
  // Waits for one from the test; ends the process when none comes for a minute.
  [[nodiscard]] std::string Await() const;

 private:
  int rank_;
  int size_;
  int channel_;
};

struct End {
  int exit_code = -1;  // -1: ended by a signal
  int signal = 0;      // 0: ended by itself
  std::string output;  // what it wrote to standard error
};

using Body = std::function<void(const Child&)>;
using Variables = std::map<std::string, std::string>;

// The children of one test. What is left of them is killed when it goes.
class Processes {
 public:
  // Starts `size` children that run `body` and exit with 0. Every rank is a host of its own
  // (NCCL_HOSTID) unless `variables`, which are set in all of them, say otherwise.
  // REQUIRES: this process has one thread only.
  Processes(int size, const Body& body, const Variables& variables = {});
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  void Tell(int rank, const std::string& message);
  // Waits for a message for up to a minute; "" when the child has ended.
  [[nodiscard]] std::string Await(int rank);
  // The first message of any child.
  [[nodiscard]] std::string AwaitAny();
  // Hands an id that rank 0 tells to all others.
  void PassOnId();
  void Kill(int rank);
  // Waits for up to a minute; a child that has not ended by then is killed.
  [[nodiscard]] End Wait(int rank);
  // Waits for all, and expects that each has exited with 0.
  void ExpectAllWell();

 private:
  struct Process {
    pid_t pid = -1;
    int pidfd = -1;
    int channel = -1;
    int output = -1;
    bool reaped = false;
    End end;
  };
  std::vector<Process> processes_;
};

// Runs the body in one child.
[[nodiscard]] End RunAlone(const std::function<void()>& body, const Variables& variables = {});

// ---- Within children ----------------------------------------------------------------------------

// Ends the child when the condition is false, with the line.
void RequireAt(const char* file, int line, const char* condition, bool holds);
#define REQUIRE(condition) \
  ::muster::gpu_double::RequireAt(__FILE__, __LINE__, #condition, (condition))

// Asks again and again until it is true; ends the child after a minute.
void Until(const std::function<bool()>& is_true);
// Asks for a tenth of a second: it has to stay true. For what is to hang: a hang is never taken for
// something else, however slow the machine.
void Stays(const std::function<bool()>& is_true);
// Ends the child at once, well, whatever hangs in it.
[[noreturn]] void Leave();

}  // namespace muster::gpu_double
