#include "chaos/live/injector.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "protocol/transport/steady_clock.h"

namespace muster::chaos {
namespace {

constexpr Duration kDrainLimit = Duration::Seconds(30);
constexpr Duration kCommandLimit = Duration::Seconds(30);

std::string_view SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? "?" : name;
}

// Kills one life of a process, and no other that bears its number by now.
bool SignalLife(const ProcessHistory& process, int signal) {
  if (StartTicksOf(process.pid) != process.start_ticks) return false;
  return kill(static_cast<pid_t>(process.pid), signal) == 0;
}

}  // namespace

Injector::Injector(Lab& lab, Network* network, ProcessWatch& watch, CoordinatorView& view,
                   NodeRecipe recipe)
    : lab_(lab), network_(network), watch_(watch), view_(view), recipe_(std::move(recipe)) {
  std::filesystem::create_directories(lab_.directory() + "/notices");
}

std::string Injector::NoticeFile(const std::string& node) const {
  return lab_.directory() + "/notices/" + node;
}

Status Injector::StartNode(const std::string& node) {
  return lab_.StartProgram(recipe_.job, node, static_cast<int>(recipe_.workers), recipe_.program,
                           {{"MUSTER_NOTICE_FILE", NoticeFile(node)}});
}

Injection Injector::Begin(const PlannedFault& planned) {
  Injection injection;
  injection.planned = planned;
  injection.begun_ns = UnixNanos();
  watch_.Look(injection.begun_ns);
  const Status status = Do(&injection);
  if (!status.ok()) injection.failure = status.message();
  const bool lasts = planned.hold > Duration() && status.ok();
  if (!lasts) injection.over_ns = UnixNanos();
  return injection;
}

Status Injector::Do(Injection* injection) {
  switch (injection->planned.kind) {
    case FaultKind::kKill: return SignalWorkers(injection, SIGKILL);
    case FaultKind::kPause: return SignalWorkers(injection, SIGSTOP);
    case FaultKind::kStop: return SignalWorkers(injection, SIGTERM);
    case FaultKind::kLoseNode: return LoseNodes(injection, true);
    case FaultKind::kKillLauncher: return LoseNodes(injection, false);
    case FaultKind::kStopNode: return SignalLaunchers(injection, SIGTERM);
    case FaultKind::kDrain: return Drain(injection, false);
    case FaultKind::kNotice:
    case FaultKind::kWithdrawnNotice: return Notify(injection);
    case FaultKind::kKillCoordinator:
    case FaultKind::kPauseCoordinator:
    case FaultKind::kLoseStore: return OnCoordinator(injection);
    case FaultKind::kCut:
    case FaultKind::kReset:
    case FaultKind::kLinkDown:
    case FaultKind::kSlow:
    case FaultKind::kLossy:
    case FaultKind::kDelay: return OnLinks(injection);
    case FaultKind::kFillCheckpointDisk:
    case FaultKind::kFillIndexDisk: return Fill(injection);
    case FaultKind::kFlipBit:
    case FaultKind::kTruncate: return Damage(injection);
    case FaultKind::kStarve: return Starve(injection);
  }
  return Internal("a kind of fault that nobody makes");
}

std::vector<std::string> Injector::VictimsOf(const PlannedFault& planned) const {
  std::vector<std::string> victims;
  if (planned.rank >= 0) {
    const std::optional<JobStatus> job = view_.Latest();
    if (job) {
      for (const WorkerStatus& worker : job->workers) {
        if (worker.role == "member" && worker.rank == planned.rank) {
          victims.push_back(worker.worker);
        }
      }
    }
    return victims;
  }
  for (const std::string& node : planned.nodes) {
    victims.push_back(fmt::format("{}-{}", node, planned.local_rank));
  }
  return victims;
}

// A worker that was drawn may be dead at that moment, by an earlier fault: another one is hit then.
void Injector::ReplaceDead(const PlannedFault& planned, std::vector<std::string>* victims) const {
  if (planned.named || planned.rank >= 0) return;
  std::vector<std::string> alive;
  for (const ProcessHistory& process : watch_.Alive()) {
    if (process.role == "worker") alive.push_back(process.name);
  }
  std::vector<std::string> others = alive;
  std::erase_if(others, [&](const std::string& name) {
    return std::find(victims->begin(), victims->end(), name) != victims->end();
  });
  for (std::string& victim : *victims) {
    const bool lives = std::find(alive.begin(), alive.end(), victim) != alive.end();
    if (lives || others.empty()) continue;
    const auto other = others.begin() + static_cast<std::ptrdiff_t>(planned.dice % others.size());
    victim = *other;
    others.erase(other);
  }
}

Status Injector::SignalWorkers(Injection* injection, int signal) {
  std::vector<std::string> victims = VictimsOf(injection->planned);
  ReplaceDead(injection->planned, &victims);
  std::vector<std::string> told;
  for (const ProcessHistory& process : watch_.Alive()) {
    const bool hit = process.role == "worker" &&
                     std::find(victims.begin(), victims.end(), process.name) != victims.end();
    if (!hit || !SignalLife(process, signal)) continue;
    injection->victims.push_back(process.name);
    injection->pids.push_back(process.pid);
    told.push_back(fmt::format("{} (process {})", process.name, process.pid));
  }
  if (told.empty()) {
    return NotFound(fmt::format("no process of {} was there", fmt::join(victims, ", ")));
  }
  injection->what = fmt::format("SIG{} to {}", SignalName(signal), fmt::join(told, ", "));
  return {};
}

Status Injector::LoseNodes(Injection* injection, bool workers_too) {
  const std::vector<std::string>& nodes = injection->planned.nodes;
  const std::vector<ProcessHistory> alive = watch_.Alive();
  int launchers = 0;
  for (const std::string& node : nodes) {
    Process* launcher = lab_.Find(node);
    if (launcher != nullptr && launcher->Running()) {
      launcher->Signal(SIGKILL);
      (void)launcher->Wait(kCommandLimit);  // so that it is not taken for one that runs
      injection->pids.push_back(launcher->pid());
      ++launchers;
    }
    for (const ProcessHistory& process : alive) {
      if (process.role != "worker" || !process.name.starts_with(node + "-")) continue;
      if (workers_too) SignalLife(process, SIGKILL);
      injection->victims.push_back(process.name);
      injection->pids.push_back(process.pid);
    }
  }
  if (launchers == 0) {
    return NotFound(fmt::format("no launcher of {} ran", fmt::join(nodes, ", ")));
  }
  injection->what = fmt::format("SIGKILL to the launcher{} of node {}",
                                workers_too ? " and all workers" : "", fmt::join(nodes, ", "));
  return {};
}

Status Injector::SignalLaunchers(Injection* injection, int signal) {
  for (const std::string& node : injection->planned.nodes) {
    Process* launcher = lab_.Find(node);
    if (launcher == nullptr || !launcher->Running()) {
      return NotFound(fmt::format("the launcher of node {} does not run", node));
    }
    launcher->Signal(signal);
    injection->pids.push_back(launcher->pid());
    NoteWorkers(node, injection);
  }
  injection->what = fmt::format("SIG{} to the launcher of node {}", SignalName(signal),
                                fmt::join(injection->planned.nodes, ", "));
  return {};
}

Status Injector::Drain(Injection* injection, bool undo) {
  for (const std::string& node : injection->planned.nodes) {
    if (!undo) NoteWorkers(node, injection);
    ProcessOptions command;
    command.argv = {lab_.Program("muster"), "drain",   recipe_.job, "--node", node,
                    "--coordinator",        lab_.url()};
    if (undo) command.argv.emplace_back("--undo");
    if (!lab_.token().empty()) command.environment.emplace_back("MUSTER_TOKEN", lab_.token());
    command.output = lab_.directory() + "/drain.log";
    const Result<int> code = RunToEnd(command, kCommandLimit);
    if (!code.ok()) return code.status();
    if (*code != 0) {
      return Internal(
          fmt::format("muster drain ended with {}: {}", *code, ReadFile(command.output)));
    }
  }
  if (!undo) {
    injection->what = fmt::format("node {} is drained", fmt::join(injection->planned.nodes, ", "));
  }
  return {};
}

Status Injector::Notify(Injection* injection) {
  for (const std::string& node : injection->planned.nodes) {
    NoteWorkers(node, injection);
    std::ofstream file(NoticeFile(node));
    file << fmt::format("{:.3f}\n", injection->planned.hold.ToSeconds());
    if (!file.flush()) return Internal(fmt::format("{} cannot be written", NoticeFile(node)));
  }
  injection->what = fmt::format("notice to node {}", fmt::join(injection->planned.nodes, ", "));
  return {};
}

// They may end for it.
void Injector::NoteWorkers(const std::string& node, Injection* injection) const {
  for (const ProcessHistory& process : watch_.Alive()) {
    if (process.role != "worker" || !process.name.starts_with(node + "-")) continue;
    injection->victims.push_back(process.name);
    injection->pids.push_back(process.pid);
  }
}

Status Injector::OnCoordinator(Injection* injection) {
  Process* coordinator = lab_.coordinator();
  if (coordinator == nullptr) return FailedPrecondition("musterd does not run");
  const pid_t pid = coordinator->pid();
  injection->pids.push_back(pid);
  view_.Refresh(Duration::Millis(200));  // so that its events are not lost with it
  if (injection->planned.kind == FaultKind::kPauseCoordinator) {
    coordinator->Signal(SIGSTOP);
    injection->what = fmt::format("SIGSTOP to musterd (process {})", pid);
    return {};
  }
  lab_.KillCoordinator();
  injection->what = fmt::format("SIGKILL to musterd (process {})", pid);
  if (injection->planned.kind == FaultKind::kLoseStore) {
    lab_.LoseStore();
    injection->what += ", and its store removed";
  }
  return {};
}

Status Injector::Starve(Injection* injection) {
  std::vector<Process>& loops = loops_[injection->planned.number];
  ProcessOptions loop;
  loop.argv = {"/bin/sh", "-c", "while :; do :; done"};
  for (std::int64_t i = 0; i < injection->planned.amount; ++i) {
    Result<Process> process = Process::Start(loop);
    if (!process.ok()) return process.status();
    loops.push_back(std::move(process).value());
  }
  injection->what = fmt::format("{} busy loops", injection->planned.amount);
  return {};
}

Result<bool> Injector::Undo(Injection* injection) {
  const FaultKind kind = injection->planned.kind;
  Result<bool> undone = true;
  switch (kind) {
    case FaultKind::kPause:
      watch_.Look(UnixNanos());
      for (const ProcessHistory& process : watch_.Alive()) {
        const auto& pids = injection->pids;
        if (std::find(pids.begin(), pids.end(), process.pid) != pids.end()) {
          SignalLife(process, SIGCONT);
        }
      }
      break;
    case FaultKind::kLoseNode:
    case FaultKind::kKillLauncher:
    case FaultKind::kStop:
    case FaultKind::kStopNode: undone = BringBack(*injection); break;
    case FaultKind::kNotice:
    case FaultKind::kWithdrawnNotice:
      if (kind == FaultKind::kNotice) {
        watch_.Look(UnixNanos());
        // Its workers may have left, and the launcher ended, in the time that they were given.
        (void)LoseNodes(injection, true);
      }
      for (const std::string& node : injection->planned.nodes) {
        std::filesystem::remove(NoticeFile(node));
      }
      undone = BringBack(*injection);
      break;
    case FaultKind::kDrain:
      // Its workers may need longer than that to leave: only then has it been a drain.
      if (AnyLauncherRuns(*injection) && UnixNanos() < injection->begun_ns +
                                                           injection->planned.hold.nanos() +
                                                           kDrainLimit.nanos()) {
        return false;
      }
      if (const Status status = Drain(injection, true); !status.ok()) {
        undone = status;
      } else {
        // With all of its workers gone its launcher has ended.
        undone = BringBack(*injection);
      }
      break;
    case FaultKind::kKillCoordinator:
    case FaultKind::kPauseCoordinator:
    case FaultKind::kLoseStore: undone = UndoCoordinator(injection); break;
    case FaultKind::kStarve: loops_.erase(injection->planned.number); break;
    case FaultKind::kFillCheckpointDisk:
    case FaultKind::kFillIndexDisk:
      for (const std::string& file : fillers_[injection->planned.number]) {
        std::filesystem::remove(file);
      }
      break;
    default:
      if (const Status status = HealLinks(*injection); !status.ok()) undone = status;
      break;
  }
  if (!undone.ok() || !*undone) return undone;
  injection->over_ns = UnixNanos();
  return true;
}

bool Injector::AnyLauncherRuns(const Injection& injection) {
  const auto& nodes = injection.planned.nodes;
  return std::any_of(nodes.begin(), nodes.end(), [&](const std::string& node) {
    Process* launcher = lab_.Find(node);
    return launcher != nullptr && launcher->Running();
  });
}

Result<bool> Injector::UndoCoordinator(Injection* injection) {
  if (injection->planned.kind == FaultKind::kPauseCoordinator) {
    if (lab_.coordinator() != nullptr) lab_.coordinator()->Signal(SIGCONT);
    return true;
  }
  if (lab_.coordinator() != nullptr) return true;  // another fault has brought it back
  view_.NewLife();
  if (const Status status = lab_.StartCoordinator(); !status.ok()) return status;
  return true;
}

// Its launcher is started again, unless it runs: a worker that was asked to leave is not started
// again by a launcher that has others.
Result<bool> Injector::BringBack(const Injection& injection) {
  for (const std::string& node : injection.planned.nodes) {
    Process* launcher = lab_.Find(node);
    const bool asked = injection.planned.kind == FaultKind::kStop ||
                       injection.planned.kind == FaultKind::kStopNode;
    if (launcher != nullptr && launcher->Running()) {
      if (injection.planned.kind == FaultKind::kStopNode) return false;
      if (asked && recipe_.workers == 1) return false;
      continue;
    }
    if (const Status status = StartNode(node); !status.ok()) return status;
  }
  return true;
}

}  // namespace muster::chaos
