// Faults that a test asks the doubles for, by name, through MUSTER_DOUBLE_FAULTS. TEST CODE.
// tests/gpu/README.md has the grammar and says what each fault does.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::gpu_double {

// What is known where a fault could strike. Counts start at 1; 0 or -1: not known there.
struct Moment {
  int comm = 0;            // which communicator of this process
  int rank = -1;           // in that communicator
  int op = 0;              // which operation on that communicator
  int n = 0;               // which call of this kind in this process
  std::string_view name;   // the kernel's
  std::string_view label;  // the communicator's name (ncclConfig_t::commName)
};

struct Fault {
  std::string name;
  std::optional<int> comm, rank, op, n, generation;
  std::string kernel;       // empty: any
  std::string when;         // a file that has to exist; empty: always
  std::string if_variable;  // an environment variable that has to have a value; empty: always
  std::string if_value;
  std::string error;  // what to fail with; empty: what the fault says
  int ms = 0;

  // Do all its conditions hold? One that asks for what the moment does not know does not.
  [[nodiscard]] bool Holds(const Moment& moment) const;
};

// Reads the grammar. Returns what is wrong, or nothing.
[[nodiscard]] std::optional<std::string> ParseFaults(std::string_view text,
                                                     std::vector<Fault>* faults);

// The first fault of this name in MUSTER_DOUBLE_FAULTS whose conditions hold now, or null. Says so
// the first time that it strikes. Any thread; a malformed variable ends the process.
[[nodiscard]] const Fault* Struck(std::string_view name, const Moment& moment);

}  // namespace muster::gpu_double
