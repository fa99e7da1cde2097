#include "chaos/live/engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/mount.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "chaos/live/campaign.h"
#include "chaos/live/injector.h"
#include "chaos/live/verdict.h"
#include "protocol/transport/steady_clock.h"

namespace muster::chaos {
namespace {

constexpr const char* kJob = "chaos";
constexpr Duration kTick = Duration::Millis(2);
constexpr Duration kLookEvery = Duration::Millis(250);
constexpr Duration kFirstStepLimit = Duration::Seconds(120);
constexpr Duration kStopLimit = Duration::Seconds(60);
constexpr Duration kExitLimit = Duration::Seconds(30);

bool Uses(const Schedule& schedule, FaultKind kind) {
  return std::any_of(schedule.faults.begin(), schedule.faults.end(),
                     [&](const PlannedFault& fault) { return fault.kind == kind; });
}

// A disk of its own, of the given size, in this mount namespace alone.
Status MountDisk(const std::string& directory, std::int64_t mib) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const std::string size = fmt::format("size={}m", mib);
  if (mount("muster-chaos", directory.c_str(), "tmpfs", 0, size.c_str()) != 0) {
    return FromErrno(errno, fmt::format("mount a disk at {}", directory));
  }
  return {};
}

LabOptions LabOptionsOf(const RunOptions& options, const std::string& name) {
  LabOptions lab;
  lab.bin_directory = options.bin_directory;
  lab.parent = options.parent;
  lab.name = name;
  lab.keep = options.keep;
  lab.coordinator_program = options.coordinator_program;
  lab.coordinator_flags = options.scenario.coordinator_flags;
  lab.launcher_flags = options.scenario.launcher_flags;
  const auto& flags = lab.launcher_flags;
  if (std::find(flags.begin(), flags.end(), "--max-restarts") == flags.end()) {
    // The lab's own kills must not use up the patience of the launchers.
    lab.launcher_flags.insert(lab.launcher_flags.end(), {"--max-restarts", "1000000"});
  }
  return lab;
}

// One run, from the first process to the last.
class Run {
 public:
  Run(const RunOptions& options, Console& console) : options_(options), console_(console) {}

  Status Prepare();
  // The faults, and whatever time they take.
  void Play();
  // Everything is stopped and looked at.
  Evidence Close();

 private:
  Status StartAll();
  void AwaitFirstStep();
  void Tick(Campaign* campaign);
  void BeginDue(Campaign* campaign);
  void UndoDue(bool all);
  void Look();
  void Progress();
  [[nodiscard]] bool NodesEnded();
  void UndoAll();
  void StopNodes();
  void Gather();

  const RunOptions& options_;
  Console& console_;
  Evidence evidence_;
  Schedule schedule_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<Lab> lab_;  // after the network: it ends first
  std::unique_ptr<ProcessWatch> watch_;
  std::unique_ptr<CoordinatorView> view_;
  std::unique_ptr<Injector> injector_;
  std::vector<std::string> nodes_;
  Instant looked_;
};

Status Run::Prepare() {
  const Scenario& scenario = options_.scenario;
  evidence_.scenario = scenario;
  evidence_.seed = options_.seed;
  evidence_.program = options_.program;
  schedule_ = Draw(scenario, options_.seed, options_.sandbox.powers);
  evidence_.left_out = schedule_.left_out;
  for (std::int64_t i = 0; i < scenario.nodes; ++i) nodes_.push_back(NodeName(i));
  LabOptions lab = LabOptionsOf(options_, "muster-chaos");
  if (options_.sandbox.powers.network) {
    std::vector<std::string> parties = nodes_;
    parties.insert(parties.begin(), "musterd");
    Result<std::unique_ptr<Network>> network =
        Network::Make(parties, Uses(schedule_, FaultKind::kDelay));
    if (!network.ok()) return network.status();
    network_ = std::move(network).value();
    lab.network = network_.get();
  }
  Result<std::unique_ptr<Lab>> made = Lab::Create(lab);
  if (!made.ok()) return made.status();
  lab_ = std::move(made).value();
  evidence_.directory = lab_->directory();
  std::filesystem::create_directories(lab_->directory() + "/checkpoints");
  if (Uses(schedule_, FaultKind::kFillCheckpointDisk)) {
    MUSTER_RETURN_IF_ERROR(MountDisk(lab_->directory() + "/checkpoints", scenario.disk_mib));
  }
  if (Uses(schedule_, FaultKind::kFillIndexDisk)) {
    MUSTER_RETURN_IF_ERROR(MountDisk(lab_->directory() + "/data", scenario.disk_mib));
  }
  return StartAll();
}

Status Run::StartAll() {
  MUSTER_RETURN_IF_ERROR(lab_->StartCoordinator());
  watch_ = std::make_unique<ProcessWatch>(lab_->Mark());
  view_ = std::make_unique<CoordinatorView>(lab_->url(), lab_->token(), kJob);
  const NodeRecipe recipe{kJob, options_.scenario.workers_per_node, options_.program};
  injector_ = std::make_unique<Injector>(*lab_, network_.get(), *watch_, *view_, recipe);
  evidence_.began_ns = UnixNanos();
  for (const std::string& node : nodes_) MUSTER_RETURN_IF_ERROR(injector_->StartNode(node));
  return {};
}

void Run::Look() {
  const Instant now = MonotonicNow();
  if (now - looked_ < kLookEvery) return;
  looked_ = now;
  watch_->Look(UnixNanos());
  ReapEnded(lab_->Pids());
  Progress();
}

void Run::Progress() {
  if (const std::optional<JobStatus> job = view_->Latest()) {
    console_.Progress("training", *job, job->steps);
  }
}

bool Run::NodesEnded() {
  return std::all_of(nodes_.begin(), nodes_.end(), [&](const std::string& node) {
    Process* process = lab_->Find(node);
    return process == nullptr || !process->Running();
  });
}

void Run::AwaitFirstStep() {
  const Instant deadline = MonotonicNow() + kFirstStepLimit;
  RecordFollower& records = lab_->Records(kJob);
  while (evidence_.trouble.empty() && evidence_.training_ns == 0) {
    records.AwaitChange(Duration::Millis(100));
    if (const auto fresh = records.Poll(); !fresh.ok())
      evidence_.trouble = fresh.status().message();
    if (!records.all().empty()) evidence_.training_ns = records.all().front().t_ns;
    Look();
    if (Interrupted()) evidence_.trouble = "interrupted";
    if (NodesEnded() && evidence_.training_ns == 0) {
      evidence_.trouble = fmt::format("all launchers ended before the first step; node {} said: {}",
                                      nodes_.front(), lab_->OutputOf(nodes_.front()));
    } else if (MonotonicNow() > deadline) {
      const std::optional<JobStatus> job = view_->Latest();
      evidence_.trouble = fmt::format(
          "no step within {} s; {}", kFirstStepLimit.ToSeconds(),
          job ? (job->waiting_for.empty() ? job->phase : job->waiting_for) : "no such job");
    }
  }
}

void Run::Play() {
  AwaitFirstStep();
  if (!evidence_.trouble.empty()) return;
  const std::optional<JobStatus> job = view_->Latest();
  Campaign campaign(options_.scenario, schedule_.faults, evidence_.training_ns,
                    job ? job->min_workers : 1, job ? job->max_workers : 1);
  while (evidence_.trouble.empty()) {
    Tick(&campaign);
    const std::optional<JobStatus> now = view_->Latest();
    if (now && now->ended()) break;
    if (NodesEnded() && campaign.Held(evidence_.injections).empty()) break;
    const Campaign::End end = campaign.IsOver(
        UnixNanos(), now && now->phase == "running" ? now->world_size : 0, evidence_.injections);
    evidence_.trouble = end.trouble;
    if (end.over) break;
    if (Interrupted()) evidence_.trouble = "interrupted";
  }
  view_->SetEager(false);
  for (const PlannedFault& fault : campaign.Pending()) {
    Injection never;
    never.planned = fault;
    never.failure = "the run was over before its moment came";
    evidence_.injections.push_back(std::move(never));
  }
}

void Run::Tick(Campaign* campaign) {
  RecordFollower& records = lab_->Records(kJob);
  records.AwaitChange(kTick);
  const auto fresh = records.Poll();
  if (!fresh.ok()) {
    evidence_.trouble = fresh.status().message();
    return;
  }
  for (const StepRecord& record : *fresh) campaign->Committed(record);
  view_->SetEager(campaign->AwaitsPhase());
  UndoDue(false);
  BeginDue(campaign);
  Look();
}

void Run::BeginDue(Campaign* campaign) {
  const std::optional<JobStatus> job = view_->Latest();
  Campaign::Moment moment;
  moment.now_ns = UnixNanos();
  moment.reforming = job && job->phase == "forming";
  moment.saving = job && !job->checkpoint_root.empty() && campaign->AwaitsPhase() &&
                  SavingIn(job->checkpoint_root);
  const std::optional<PlannedFault> due = campaign->Due(moment, evidence_.injections);
  if (!due) return;
  Injection injection = injector_->Begin(*due);
  console_.Event(fmt::format(
      "{:7.2f} s  fault {}: {}",
      static_cast<double>(injection.begun_ns - evidence_.training_ns) / 1e9, due->number,
      injection.failure.empty()
          ? (injection.what.empty() ? Describe(*due) : injection.what)
          : fmt::format("{} not made: {}", NameOf(due->kind), injection.failure)));
  if (campaign->MayBeLeftOut(*due) && !injection.failure.empty()) {
    evidence_.left_out.push_back(
        {due->kind, fmt::format("fault {}: {}", due->number, injection.failure)});
    return;
  }
  evidence_.injections.push_back(std::move(injection));
  campaign->MarkBlocking(&evidence_.injections);
}

void Run::UndoDue(bool all) {
  for (Injection& injection : evidence_.injections) {
    if (injection.over_ns != 0) continue;
    if (!all && UnixNanos() < injection.begun_ns + injection.planned.hold.nanos()) continue;
    const Result<bool> undone = injector_->Undo(&injection);
    if (!undone.ok()) {
      injection.over_ns = UnixNanos();
      injection.failure = fmt::format("it could not be undone: {}", undone.status().message());
    }
    if (injection.over_ns != 0) {
      console_.Line(
          fmt::format("{:7.2f} s  fault {} is over",
                      static_cast<double>(injection.over_ns - evidence_.training_ns) / 1e9,
                      injection.planned.number));
    }
  }
}

void Run::UndoAll() {
  const Instant deadline = MonotonicNow() + kStopLimit;
  const auto held = [&] {
    return std::any_of(evidence_.injections.begin(), evidence_.injections.end(),
                       [](const Injection& injection) { return injection.over_ns == 0; });
  };
  while (held() && MonotonicNow() < deadline) {
    UndoDue(true);
    if (held()) lab_->Records(kJob).AwaitChange(Duration::Millis(50));
    Look();
  }
}

void Run::StopNodes() {
  const std::optional<JobStatus> job = view_->Latest();
  evidence_.finished = job && job->ended() && job->end_kind == "finished";
  const bool gave_up = !evidence_.trouble.empty();
  // A job that has ended lets its workers go by itself.
  const bool by_itself = job && job->ended();
  Instant deadline = MonotonicNow() + (by_itself ? kExitLimit : kStopLimit);
  if (gave_up) deadline = MonotonicNow() + Duration::Seconds(5);
  for (const std::string& node : nodes_) {
    Process* process = lab_->Find(node);
    if (process == nullptr) continue;
    if (!by_itself) process->Signal(SIGTERM);
  }
  while (!NodesEnded() && MonotonicNow() < deadline) {
    lab_->Records(kJob).AwaitChange(Duration::Millis(20));
    Look();
  }
  for (const std::string& node : nodes_) {
    Process* process = lab_->Find(node);
    if (process == nullptr) continue;
    if (const std::optional<int> ended = process->Wait(Duration())) {
      evidence_.exits[node] = ExitCode(*ended);
    } else {
      evidence_.unended.push_back(node);
      process->Signal(SIGKILL);
      (void)process->Wait(kExitLimit);
    }
  }
}

void Run::Gather() {
  view_->Refresh(Duration::Seconds(2));
  evidence_.job = view_->Latest();
  evidence_.events = view_->Events();
  evidence_.incidents = view_->Incidents();
  RecordFollower& records = lab_->Records(kJob);
  if (const auto fresh = records.Poll(); !fresh.ok() && evidence_.trouble.empty()) {
    evidence_.trouble = fresh.status().message();
  }
  evidence_.facts.records = records.all();
  if (evidence_.job) {
    evidence_.min_workers = evidence_.job->min_workers;
    evidence_.lease =
        Duration::Millis(static_cast<std::int64_t>(evidence_.job->failure_timeout_ms));
    evidence_.facts.epoch_samples = evidence_.job->epoch_samples;
    evidence_.facts.global_batch = evidence_.job->global_batch;
    AddNamed(evidence_.events, &evidence_.facts);
    AddNamed(evidence_.incidents, &evidence_.facts);
  }
  const Standing standing = StandingOf(evidence_.facts);
  evidence_.facts.steps = standing.empty() ? 0 : standing.rbegin()->first;
  for (const std::string& node : nodes_) {
    const auto fact = FactsOfLog(lab_->directory() + "/" + node + ".log", node + ".log");
    if (fact.ok()) evidence_.logs.push_back(*fact);
  }
  const auto fact = FactsOfLog(lab_->directory() + "/musterd.log", "musterd.log");
  if (fact.ok()) evidence_.logs.push_back(*fact);
}

Evidence Run::Close() {
  console_.EndProgress();
  if (!view_) return std::move(evidence_);
  UndoAll();
  if (lab_->coordinator() == nullptr) {
    view_->NewLife();
    (void)lab_->StartCoordinator();
  }
  view_->Refresh(Duration::Seconds(2));
  evidence_.stopped_ns = UnixNanos();
  StopNodes();
  evidence_.ended_ns = UnixNanos();
  watch_->Look(evidence_.ended_ns);
  for (const ProcessHistory& process : watch_->Alive()) {
    if (process.role == "coordinator") continue;
    evidence_.strays.push_back(
        fmt::format("{} {} (process {})", process.role, process.name, process.pid));
  }
  Gather();
  evidence_.processes = watch_->Histories();
  view_.reset();
  if (lab_->coordinator() != nullptr) lab_->KillCoordinator();
  if (evidence_.job && !evidence_.job->checkpoint_root.empty()) {
    evidence_.checkpoints =
        VerifyCheckpoints(lab_->Program("muster"), evidence_.job->checkpoint_root, *evidence_.job);
    for (CheckpointFact& checkpoint : evidence_.checkpoints) {
      const std::string prefix = evidence_.job->checkpoint_root + "/" + checkpoint.directory + "/";
      const auto& damaged = injector_->damaged();
      checkpoint.damaged_by_us =
          std::any_of(damaged.begin(), damaged.end(),
                      [&](const std::string& file) { return file.starts_with(prefix); });
    }
  }
  return std::move(evidence_);
}

}  // namespace

Result<Evidence> RunScenario(const RunOptions& options, Console& console) {
  Run run(options, console);
  if (const Status prepared = run.Prepare(); !prepared.ok()) return prepared;
  run.Play();
  return run.Close();
}

Result<RunFacts> RunReference(const RunOptions& options, std::int64_t steps, Console& console) {
  LabOptions lab_options = LabOptionsOf(options, "muster-reference");
  lab_options.coordinator_program.clear();
  Result<std::unique_ptr<Lab>> made = Lab::Create(lab_options);
  if (!made.ok()) return made.status();
  Lab& lab = **made;
  std::filesystem::create_directories(lab.directory() + "/checkpoints");
  MUSTER_RETURN_IF_ERROR(lab.StartCoordinator());
  std::vector<std::string> nodes;
  for (std::int64_t i = 0; i < options.scenario.nodes; ++i) {
    nodes.push_back(NodeName(i));
    MUSTER_RETURN_IF_ERROR(lab.StartProgram(kJob, nodes.back(),
                                            static_cast<int>(options.scenario.workers_per_node),
                                            options.program, {}));
  }
  CoordinatorView view(lab.url(), lab.token(), kJob);
  RecordFollower& records = lab.Records(kJob);
  std::int64_t last = 0;
  Instant moved = MonotonicNow();
  while (records.last_step() < steps) {
    records.AwaitChange(Duration::Millis(100));
    if (const auto fresh = records.Poll(); !fresh.ok()) return fresh.status();
    const std::optional<JobStatus> job = view.Latest();
    if (job) console.Progress("reference", *job, steps);
    if (job && job->ended()) break;
    if (Interrupted()) return muster::Interrupted("the reference");
    if (records.last_step() > last) {
      last = records.last_step();
      moved = MonotonicNow();
    } else if (MonotonicNow() - moved > kFirstStepLimit) {
      return DeadlineExceeded(fmt::format("the undisturbed run does not get beyond step {}", last));
    }
  }
  console.EndProgress();
  view.Refresh(Duration::Seconds(2));
  const std::optional<JobStatus> job = view.Latest();
  for (const std::string& node : nodes) {
    if (!job || !job->ended()) lab.At(node).Signal(SIGTERM);
  }
  for (const std::string& node : nodes) (void)lab.At(node).Wait(kStopLimit);
  RunFacts facts;
  if (const auto fresh = records.Poll(); !fresh.ok()) return fresh.status();
  if (!options.record_copy.empty()) {
    std::error_code error;
    std::filesystem::remove_all(options.record_copy, error);
    std::filesystem::copy(lab.directory() + "/records-" + kJob, options.record_copy, error);
    if (error) return Internal(fmt::format("{}: {}", options.record_copy, error.message()));
  }
  facts.records = records.all();
  if (job) {
    facts.epoch_samples = job->epoch_samples;
    facts.global_batch = job->global_batch;
  }
  const Standing standing = StandingOf(facts);
  facts.steps = standing.empty() ? 0 : standing.rbegin()->first;
  return facts;
}

}  // namespace muster::chaos
