#include "chaos/live/supervisor.h"

#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/random.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "chaos/live/sandbox.h"
#include "protocol/check.h"
#include "protocol/transport/http_get.h"
#include "protocol/transport/steady_clock.h"

namespace muster::chaos {
namespace {

// Of the network's namespaces.
constexpr const char* kCoordinatorParty = "musterd";
constexpr const char* kMarkName = "MUSTER_LAB_RUN";
constexpr Duration kHttpTimeout = Duration::Seconds(5);
constexpr Duration kLookInterval = Duration::Millis(20);
constexpr Duration kStartLimit = Duration::Seconds(30);

std::string TemporaryDirectory() {
  const char* directory = getenv("TMPDIR");
  return directory != nullptr && *directory != '\0' ? directory : "/tmp";
}

std::string Summary(const JobStatus& job) {
  std::string text = fmt::format("{}, generation {}, {} workers, step {}", job.phase,
                                 job.generation, job.world_size, job.committed);
  if (!job.waiting_for.empty()) text += ", " + job.waiting_for;
  for (const WorkerStatus& worker : job.workers) {
    text += fmt::format("; {} {} {} step {} {}", worker.worker, worker.role, worker.state,
                        worker.committed, worker.stage);
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<Lab>> Lab::Create(LabOptions options) {
  BecomeSubreaper();
  std::unique_ptr<Lab> lab(new Lab(std::move(options)));
  const std::string parent =
      lab->options_.parent.empty() ? TemporaryDirectory() : lab->options_.parent;
  RemoveResidue(parent, lab->options_.name);
  std::string path = fmt::format("{}/{}-XXXXXX", parent, lab->options_.name);
  if (mkdtemp(path.data()) == nullptr) return FromErrno(errno, path);
  lab->directory_ = path;
  MUSTER_RETURN_IF_ERROR(ClaimDirectory(path));
  return lab;
}

Lab::~Lab() {
  // Launchers first: they would start again what dies under them.
  processes_.clear();
  coordinator_.reset();
  ReapStrays({});
  if (directory_.empty()) return;
  std::error_code ignored;
  // Without its lock it is nobody's residue.
  std::filesystem::remove(directory_ + "/lock", ignored);
  if (!options_.keep) std::filesystem::remove_all(directory_, ignored);
}

std::string Lab::Program(const std::string& name) const {
  return options_.bin_directory + "/" + name;
}

std::string Lab::RunName() const { return directory_.substr(directory_.rfind('/') + 1); }

std::string Lab::Mark() const { return fmt::format("{}={}", kMarkName, RunName()); }

Status Lab::StartCoordinator() {
  MUSTER_CHECK(!coordinator_, "one coordinator at a time");
  const std::string port_file = directory_ + "/port";
  std::filesystem::remove(port_file);
  ProcessOptions options;
  std::string listen = url_.empty() ? "127.0.0.1:0" : url_.substr(url_.rfind('/') + 1);
  Network* const network = options_.network;
  if (network != nullptr && url_.empty()) listen = network->AddressOf(kCoordinatorParty) + ":7077";
  const std::string& other = options_.coordinator_program;
  options.argv = {other.empty() ? Program("musterd") : other,
                  "--listen",
                  listen,
                  "--data-dir",
                  directory_ + "/data",
                  "--port-file",
                  port_file};
  if (network != nullptr) {
    MUSTER_RETURN_IF_ERROR(MakeToken());
    options.argv.insert(options.argv.end(), {"--token-file", directory_ + "/token"});
    options.network = network->NamespaceOf(kCoordinatorParty);
  }
  options.environment = options_.environment;
  options.environment.emplace_back(kMarkName, RunName());
  options.argv.insert(options.argv.end(), options_.coordinator_flags.begin(),
                      options_.coordinator_flags.end());
  options.output = directory_ + "/musterd.log";
  Result<Process> process = Process::Start(options);
  if (!process.ok()) return process.status();
  coordinator_ = std::move(process).value();
  const Instant deadline = MonotonicNow() + kStartLimit;
  std::string bound;
  while ((bound = ReadFile(port_file)).empty()) {
    if (const std::optional<int> ended = coordinator_->Wait(Duration::Millis(2))) {
      coordinator_.reset();
      return Unavailable(
          fmt::format("musterd ended with {}: {}", DescribeExit(*ended), ReadFile(options.output)));
    }
    if (MonotonicNow() > deadline) return DeadlineExceeded("musterd does not say where it listens");
  }
  while (!bound.empty() && bound.back() == '\n') bound.pop_back();
  url_ = bound.starts_with("http") ? bound : "http://" + bound;
  return {};
}

// Beyond loopback musterd wants one.
Status Lab::MakeToken() {
  if (!token_.empty()) return {};
  std::uint64_t bits = 0;
  if (getrandom(&bits, sizeof(bits), 0) != sizeof(bits)) return FromErrno(errno, "getrandom");
  token_ = fmt::format("{:016x}", bits);
  const std::string path = directory_ + "/token";
  std::ofstream file(path);
  file << token_ << '\n';
  if (!file.flush()) return Internal(fmt::format("{} cannot be written", path));
  return {};
}

// The directory itself may be a mount.
void Lab::LoseStore() {
  MUSTER_CHECK(!coordinator_, "the store belongs to a musterd that runs");
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/data", ignored)) {
    std::filesystem::remove_all(entry.path(), ignored);
  }
}

void Lab::KillCoordinator() {
  MUSTER_CHECK(coordinator_.has_value(), "no coordinator runs");
  coordinator_.reset();
}

std::vector<std::string> Lab::CommandOf(const Workload& workload) const {
  std::vector<std::string> command = {Program("char_lm")};
  const auto flag = [&](const char* name, const std::string& value) {
    command.insert(command.end(), {name, value});
  };
  flag("--steps", std::to_string(workload.steps));
  flag("--min-workers", std::to_string(workload.min_workers));
  flag("--max-workers", std::to_string(workload.max_workers));
  flag("--batch", std::to_string(workload.batch));
  flag("--micro-batches", std::to_string(workload.micro_batches));
  flag("--hidden", std::to_string(workload.hidden));
  flag("--optimizer", workload.sharded ? "sharded" : "replicated");
  flag("--failure-timeout", fmt::format("{}ms", workload.failure_timeout.millis()));
  if (workload.sharded || workload.checkpoints) {
    flag("--checkpoint-dir", CheckpointDirectory(workload));
    flag("--checkpoint-every", std::to_string(workload.checkpoint_every));
  }
  if (!workload.text.empty()) flag("--text", workload.text);
  command.insert(command.end(), workload.flags.begin(), workload.flags.end());
  return command;
}

std::vector<std::pair<std::string, std::string>> Lab::EnvironmentOf(
    const Workload& workload) const {
  std::vector<std::pair<std::string, std::string>> environment = workload.environment;
  AddEnvironment(workload.job, &environment);
  return environment;
}

std::string Lab::CheckpointDirectory(const Workload& workload) const {
  return workload.checkpoint_directory.empty() ? directory_ + "/checkpoints-" + workload.job
                                               : workload.checkpoint_directory;
}

Status Lab::Launch(const std::string& key, ProcessOptions options) {
  options.output = directory_ + "/" + key + ".log";
  Result<Process> process = Process::Start(options);
  if (!process.ok()) return process.status();
  processes_.erase(key);
  processes_.emplace(key, std::move(process).value());
  return {};
}

Status Lab::StartNode(const Workload& workload, const std::string& node, int workers) {
  if (workload.checkpoint_directory.empty()) {
    std::filesystem::create_directories(CheckpointDirectory(workload));
  }
  return StartProgram(workload.job, node, workers, CommandOf(workload), workload.environment);
}

Status Lab::StartProgram(const std::string& job, const std::string& node, int workers,
                         const std::vector<std::string>& program,
                         std::vector<std::pair<std::string, std::string>> environment) {
  (void)Records(job);  // makes the directory
  ProcessOptions options;
  options.argv = {Program("muster"), "run", "-n",    std::to_string(workers),
                  "--coordinator",   url_,  "--job", job,
                  "--node",          node};
  options.argv.insert(options.argv.end(), options_.launcher_flags.begin(),
                      options_.launcher_flags.end());
  options.argv.emplace_back("--");
  for (std::string argument : program) {
    constexpr std::string_view kRun = "{run}";
    for (auto at = argument.find(kRun); at != std::string::npos; at = argument.find(kRun)) {
      argument.replace(at, kRun.size(), directory_);
    }
    options.argv.push_back(std::move(argument));
  }
  options.environment = std::move(environment);
  AddEnvironment(job, &options.environment);
  // Each node stands for a host of its own, for NCCL as well.
  options.environment.emplace_back("NCCL_HOSTID", node);
  if (options_.network != nullptr) options.network = options_.network->NamespaceOf(node);
  return Launch(node, std::move(options));
}

void Lab::AddEnvironment(const std::string& job,
                         std::vector<std::pair<std::string, std::string>>* environment) const {
  environment->emplace_back("MUSTER_RECORD_DIR", directory_ + "/records-" + job);
  environment->emplace_back("MUSTER_FLIGHT_DIR", directory_ + "/flights");
  if (!token_.empty()) environment->emplace_back("MUSTER_TOKEN", token_);
  environment->emplace_back(kMarkName, RunName());
  environment->insert(environment->end(), options_.environment.begin(), options_.environment.end());
}

Status Lab::StartWorker(const Workload& workload, const std::string& key,
                        const std::string& worker) {
  (void)Records(workload.job);
  ProcessOptions options;
  options.argv = CommandOf(workload);
  options.environment = EnvironmentOf(workload);
  options.environment.insert(
      options.environment.end(),
      {{"MUSTER_COORDINATOR", url_}, {"MUSTER_JOB", workload.job}, {"MUSTER_NODE", key}});
  if (!worker.empty()) options.environment.emplace_back("MUSTER_WORKER", worker);
  return Launch(key, std::move(options));
}

Process& Lab::At(const std::string& node) {
  const auto found = processes_.find(node);
  MUSTER_CHECK(found != processes_.end(), node);
  return found->second;
}

Process* Lab::Find(const std::string& node) {
  const auto found = processes_.find(node);
  return found == processes_.end() ? nullptr : &found->second;
}

std::vector<pid_t> Lab::Pids() {
  std::vector<pid_t> pids;
  if (coordinator_ && coordinator_->Running()) pids.push_back(coordinator_->pid());
  for (auto& [node, process] : processes_) {
    if (process.Running()) pids.push_back(process.pid());
  }
  return pids;
}

std::string Lab::OutputOf(const std::string& node) const {
  return ReadFile(directory_ + "/" + node + ".log");
}

Result<JobStatus> Lab::Job(const std::string& job) const {
  const Result<std::string> body = HttpGet(url_, "/v1/jobs/" + job, token_, kHttpTimeout);
  if (!body.ok()) return body.status();
  return ParseJobStatus(*body);
}

Result<std::vector<EventStatus>> Lab::Events(const std::string& job) const {
  const Result<std::string> body =
      HttpGet(url_, "/v1/jobs/" + job + "/events?since=0", token_, kHttpTimeout);
  if (!body.ok()) return body.status();
  return ParseEvents(*body);
}

Result<JobStatus> Lab::Await(const std::string& job, const std::string& what, Duration limit,
                             const Predicate& done) {
  const Instant deadline = MonotonicNow() + limit;
  std::string last = "no answer yet";
  while (true) {
    Result<JobStatus> status = Job(job);
    if (status.ok()) {
      if (done(*status)) return status;
      last = Summary(*status);
    } else if (status.status().code() == Code::kDataLoss) {
      return status.status();
    } else {
      last = status.status().message();
    }
    if (Interrupted()) return muster::Interrupted(what);
    if (MonotonicNow() > deadline) {
      return DeadlineExceeded(
          fmt::format("{}: not within {} s; {}", what, limit.ToSeconds(), last));
    }
    Records(job).AwaitChange(kLookInterval);
  }
}

Status Lab::AwaitStep(const std::string& job, std::int64_t step, Duration limit) {
  const Instant deadline = MonotonicNow() + limit;
  RecordFollower& records = Records(job);
  while (true) {
    if (const auto fresh = records.Poll(); !fresh.ok()) return fresh.status();
    if (records.last_step() >= step) return {};
    if (Interrupted()) return muster::Interrupted(fmt::format("waiting for step {}", step));
    const Duration left = deadline - MonotonicNow();
    if (left <= Duration()) {
      const Result<JobStatus> status = Job(job);
      return DeadlineExceeded(fmt::format(
          "step {} of {}: not within {} s, the records end at {}; {}", step, job, limit.ToSeconds(),
          records.last_step(), status.ok() ? Summary(*status) : status.status().message()));
    }
    records.AwaitChange(std::min(left, Duration::Seconds(1)));
  }
}

Status Lab::AwaitExit(const std::vector<std::string>& nodes, Duration limit) {
  const Instant deadline = MonotonicNow() + limit;
  for (const std::string& node : nodes) {
    const std::optional<int> ended = At(node).Wait(std::max(deadline - MonotonicNow(), Duration()));
    if (!ended) return DeadlineExceeded(fmt::format("node {} has not ended", node));
    if (ExitCode(*ended) != 0) {
      return Internal(
          fmt::format("node {} ended with {}: {}", node, DescribeExit(*ended), OutputOf(node)));
    }
  }
  return {};
}

RecordFollower& Lab::Records(const std::string& job) {
  std::unique_ptr<RecordFollower>& follower = records_[job];
  if (!follower) {
    const std::string directory = directory_ + "/records-" + job;
    std::filesystem::create_directories(directory);
    follower = std::make_unique<RecordFollower>(directory);
  }
  return *follower;
}

Result<RunFacts> Lab::Facts(const Workload& workload) {
  RunFacts facts;
  facts.steps = workload.steps;
  facts.global_batch = workload.batch;
  if (const auto fresh = Records(workload.job).Poll(); !fresh.ok()) return fresh.status();
  facts.records = Records(workload.job).all();
  const Result<JobStatus> job = Job(workload.job);
  if (!job.ok()) return job.status();
  const Result<std::vector<EventStatus>> events = Events(workload.job);
  if (!events.ok()) return events.status();
  facts.epoch_samples = job->epoch_samples;
  AddNamed(*events, &facts);
  return facts;
}

}  // namespace muster::chaos
