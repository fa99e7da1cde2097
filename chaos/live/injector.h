// Does to a run what a schedule says, and undoes it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "chaos/live/coordinator_view.h"
#include "chaos/live/evidence.h"
#include "chaos/live/network.h"
#include "chaos/live/supervisor.h"
#include "chaos/live/watch.h"

namespace muster::chaos {

// How to start a node again.
struct NodeRecipe {
  std::string job;
  std::int64_t workers = 1;
  std::vector<std::string> program;
};

// The engine's thread makes all calls. What it is given outlives it.
class Injector {
 public:
  Injector(Lab& lab, Network* network, ProcessWatch& watch, CoordinatorView& view,
           NodeRecipe recipe);

  // Starts a node of the run, with its own notice file.
  [[nodiscard]] Status StartNode(const std::string& node);
  // Does it. The injection says what was done to whom, or why it was not. Blocks for some
  // milliseconds; a coordinator's restart or a drain for longer.
  [[nodiscard]] Injection Begin(const PlannedFault& planned);
  // Undoes it. False: it is not ready for that yet, try again. An error is a fault of the lab.
  [[nodiscard]] Result<bool> Undo(Injection* injection);
  // Files that were damaged so far.
  [[nodiscard]] const std::vector<std::string>& damaged() const { return damaged_; }

 private:
  [[nodiscard]] Status Do(Injection* injection);
  [[nodiscard]] Status SignalWorkers(Injection* injection, int signal);
  void ReplaceDead(const PlannedFault& planned, std::vector<std::string>* victims) const;
  [[nodiscard]] Status LoseNodes(Injection* injection, bool workers_too);
  [[nodiscard]] Status SignalLaunchers(Injection* injection, int signal);
  [[nodiscard]] Status Drain(Injection* injection, bool undo);
  [[nodiscard]] Status Notify(Injection* injection);
  void NoteWorkers(const std::string& node, Injection* injection) const;
  [[nodiscard]] Status OnCoordinator(Injection* injection);
  [[nodiscard]] Status OnLinks(Injection* injection);
  [[nodiscard]] Status OnLink(const Injection& injection, const std::string& node, bool begin);
  [[nodiscard]] Status Damage(Injection* injection);
  [[nodiscard]] Status Fill(Injection* injection);
  [[nodiscard]] Status Starve(Injection* injection);

  [[nodiscard]] bool AnyLauncherRuns(const Injection& injection);
  [[nodiscard]] Result<bool> UndoCoordinator(Injection* injection);
  [[nodiscard]] Result<bool> BringBack(const Injection& injection);
  [[nodiscard]] Status HealLinks(const Injection& injection);
  [[nodiscard]] std::string NoticeFile(const std::string& node) const;
  // The worker that is hit on each node that is.
  [[nodiscard]] std::vector<std::string> VictimsOf(const PlannedFault& planned) const;

  Lab& lab_;
  Network* const network_;
  ProcessWatch& watch_;
  CoordinatorView& view_;
  const NodeRecipe recipe_;
  std::map<int, std::vector<Process>> loops_;        // of starving, by number of the fault
  std::map<int, std::vector<std::string>> fillers_;  // files, by number of the fault
  std::vector<std::string> damaged_;
};

}  // namespace muster::chaos
