#include "coordinator/core/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "coordinator/core/job.h"
#include "protocol/check.h"

namespace muster::coordinator {

bool IsName(const std::string& name) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  const auto inner = [&](char c) {
    return letter(c) || std::string_view(".-:@+").find(c) != std::string_view::npos;
  };
  return name.empty() ||
         (name.size() <= kMaxNameBytes && letter(name.front()) && std::ranges::all_of(name, inner));
}

namespace {

// "" or what is wrong with a name from outside.
std::string BadName(const char* what, const std::string& name) {
  if (name.empty()) return fmt::format("the {} is empty", what);
  if (name.size() > kMaxNameBytes) {
    return fmt::format("the {} has {} bytes, more than {}", what, name.size(), kMaxNameBytes);
  }
  const bool plain = std::ranges::all_of(name, [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == ':';
  });
  if (plain) return "";
  return fmt::format("the {} '{}' may hold letters, digits and -_.: alone", what, name);
}

// "" or what is wrong with what a worker says that it took part in.
std::string BadHistory(const Hello& hello) {
  constexpr std::int64_t kMost = std::int64_t{1} << 52U;
  const auto number = [](Generation g) { return g.value() >= 0 && g.value() <= kMost; };
  if (!number(hello.highest)) return "the generation number is out of range";
  if (hello.found) {
    if (!number(hello.found->highest))
      return "the generation number of a directory is out of range";
    for (const FoundCheckpoint& one : hello.found->checkpoints) {
      if (one.key.step < Step() || !number(one.key.generation) ||
          one.key.generation > hello.found->highest) {
        return "a number of a checkpoint that was found is out of range";
      }
    }
  }
  if (!hello.attachment) return "";
  const Attachment& attachment = *hello.attachment;
  const GenerationRecord& record = attachment.record;
  if (!number(record.generation) || record.generation == Generation() ||
      !number(attachment.aborted_for) || attachment.committed < Step()) {
    return "a number of the attachment is out of range";
  }
  std::set<Member> members;
  for (std::int32_t r = 0; r < record.world_size(); ++r) {
    const MemberEntry& entry = record.members[static_cast<std::size_t>(r)];
    if (entry.rank != Rank(r)) return "the members of the attachment are not in the order of rank";
    members.insert(entry.member);
  }
  if (members.size() != record.members.size()) return "the attachment names a member twice";
  if (record.restore.base_world_size < 0 || record.restore.base_world_size > kMaxWorldSize) {
    return "the world size of the attachment is out of range";
  }
  if (!members.contains(hello.member)) return "the worker is no member of its attachment";
  return "";
}

}  // namespace

Coordinator::Coordinator(const Config& config, std::uint64_t seed, std::vector<StoredJob> stored,
                         Instant now)
    : config_(config), prng_(seed) {
  const Status valid = config_.Validate();
  MUSTER_CHECK(valid.ok(), valid.message());
  for (StoredJob& job : stored) {
    const JobName name = job.record.job;
    jobs_.emplace(name,
                  std::make_unique<Job>(config_, std::move(job), false, &prng_, &effects_, now));
  }
}

Coordinator::~Coordinator() = default;

std::shared_ptr<Coordinator> Coordinator::Clone() const {
  auto copy = std::make_shared<Coordinator>(config_, 0, std::vector<StoredJob>(), Instant());
  copy->prng_ = prng_;
  for (const auto& [name, job] : jobs_) {
    copy->jobs_.emplace(name, std::make_unique<Job>(*job, &copy->prng_, &copy->effects_));
  }
  for (const auto& [session, job] : sessions_) {
    copy->sessions_[session] = copy->jobs_.at(job->record().job).get();
  }
  copy->refused_ = refused_;
  copy->early_launchers_ = early_launchers_;
  copy->effects_ = effects_;
  return copy;
}

Effects Coordinator::TakeEffects() { return std::exchange(effects_, Effects{}); }

Instant Coordinator::NextDeadline() const {
  Instant next = Instant::Never();
  for (const auto& [name, job] : jobs_) next = std::min(next, job->NextDeadline());
  return next;
}

std::vector<JobName> Coordinator::Jobs() const {
  std::vector<JobName> names;
  for (const auto& [name, job] : jobs_) names.push_back(name);
  return names;
}

std::size_t Coordinator::Footprint() const {
  std::size_t count = sessions_.size() + refused_.size();
  for (const auto& [session, early] : early_launchers_) count += 1 + early.attests.size();
  for (const auto& [name, job] : jobs_) count += 1 + job->Footprint();
  return count;
}

std::optional<JobView> Coordinator::Describe(const JobName& job, Instant now) const {
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return std::nullopt;
  return it->second->Describe(now);
}

bool Coordinator::CountsAreExact() const {
  return std::ranges::all_of(jobs_, [](const auto& job) { return job.second->CountsAreExact(); });
}

void Coordinator::Refuse(SessionId session, Code code, std::string reason) {
  effects_.sends.push_back({session, Refused{code, std::move(reason)}});
  End(session);
}

void Coordinator::End(SessionId session) {
  refused_.insert(session);
  effects_.closes.push_back(session);
}

Job* Coordinator::JobOfSession(SessionId session) {
  const auto it = sessions_.find(session);
  return it == sessions_.end() ? nullptr : it->second;
}

void Coordinator::Handle(const Input& input, Instant now) {
  if (const auto* received = std::get_if<Received>(&input)) OnReceived(*received, now);
  if (const auto* closed = std::get_if<Closed>(&input)) {
    if (Job* job = JobOfSession(closed->session)) job->OnClosed(closed->session, now);
    sessions_.erase(closed->session);
    early_launchers_.erase(closed->session);
    refused_.erase(closed->session);
  }
  if (std::holds_alternative<Tick>(input)) {
    for (auto& [name, job] : jobs_) {
      if (job->NextDeadline() <= now) job->OnTick(now);
    }
  }
  if (const auto* lagged = std::get_if<Lagged>(&input)) {
    for (auto& [name, job] : jobs_) job->OnLagged(lagged->by, now);
  }
  if (const auto* force = std::get_if<coordinator::ForceAdopt>(&input)) {
    if (const auto it = jobs_.find(force->job); it != jobs_.end()) it->second->ForceAdopt(now);
  }
  if (const auto* drain = std::get_if<Drain>(&input)) OnDrain(*drain, now);
}

void Coordinator::OnDrain(const Drain& drain, Instant now) {
  const auto it = jobs_.find(drain.job);
  const bool any = !drain.worker.value().empty() || !drain.node.value().empty();
  // The place becomes durable, and the store refuses what is no name.
  if (it == jobs_.end() || !any || !IsName(drain.worker.value()) || !IsName(drain.node.value())) {
    return;
  }
  it->second->OnDrain(drain, now);
}

void Coordinator::OnReceived(const Received& received, Instant now) {
  if (refused_.contains(received.session)) return;  // sent before it heard so
  const auto* hello = std::get_if<Hello>(&received.message);
  const auto* launcher = std::get_if<LauncherHello>(&received.message);
  const auto known = [&] {
    return sessions_.contains(received.session) || early_launchers_.contains(received.session);
  };
  if ((hello != nullptr || launcher != nullptr) && known()) {
    Refuse(received.session, Code::kFailedPrecondition, "a session says hello once");
  } else if (hello != nullptr) {
    OnHello(received, *hello, now);
  } else if (launcher != nullptr) {
    OnLauncherHello(received, *launcher, now);
  } else if (const auto early = early_launchers_.find(received.session);
             early != early_launchers_.end()) {
    const auto* attest = std::get_if<Attest>(&received.message);
    if (attest != nullptr && early->second.attests.size() < kMaxJobs) {
      early->second.attests[attest->worker] = *attest;
    }
  } else if (Job* job = JobOfSession(received.session)) {
    job->OnMessage(received.session, received.message, now);
  } else {
    Refuse(received.session, Code::kFailedPrecondition, "the first message must be a hello");
  }
}

void Coordinator::OnHello(const Received& received, const Hello& hello, Instant now) {
  const SessionId session = received.session;
  if (hello.major != kProtocolMajor) {
    Refuse(session, Code::kUnimplemented,
           fmt::format("this coordinator speaks protocol {}.{}, the worker {}.{}: use the same "
                       "major version on both sides",
                       kProtocolMajor, kProtocolMinor, hello.major, hello.minor));
    return;
  }
  for (const auto& [what, name] : {std::pair("job name", hello.job.value()),
                                   std::pair("worker name", hello.member.worker.value())}) {
    if (std::string bad = BadName(what, name); !bad.empty()) {
      Refuse(session, Code::kInvalidArgument, std::move(bad));
      return;
    }
  }
  if (std::string bad = BadHistory(hello); !bad.empty()) {
    Refuse(session, Code::kInvalidArgument, std::move(bad));
    return;
  }
  auto it = jobs_.find(hello.job);
  if (it == jobs_.end()) {
    Status valid = ValidateSpec(hello.spec);
    if (valid.ok() && jobs_.size() >= kMaxJobs) {
      valid = ResourceExhausted(fmt::format("this coordinator has {} jobs already", jobs_.size()));
    }
    if (!valid.ok()) {
      Refuse(session, valid.code(), valid.message());
      return;
    }
    CreateJob(hello, now);
    it = jobs_.find(hello.job);
  }
  sessions_[session] = it->second.get();
  if (!it->second->OnHello(session, hello, received.peer_address, now)) {
    sessions_.erase(session);
    End(session);
  }
}

void Coordinator::CreateJob(const Hello& hello, Instant now) {
  StoredJob stored;
  stored.record.job = hello.job;
  stored.record.spec = hello.spec;
  stored.record.lineage = Lineage(prng_.Next() | 1U);  // zero means none
  // A generation that is to be adopted is recorded once it is: until then the store has to go on
  // knowing nothing of it.
  const bool adopting = hello.attachment.has_value();
  if (!adopting) effects_.persist.emplace_back(PutJob{stored.record});
  Event created;
  created.job = hello.job;
  created.kind = EventKind::kJobCreated;
  created.at = now;
  created.detail =
      fmt::format("job {} created by worker {}", hello.job.value(), hello.member.worker.value());
  effects_.events.push_back(created);
  Job& job = *jobs_
                  .emplace(hello.job, std::make_unique<Job>(config_, std::move(stored), adopting,
                                                            &prng_, &effects_, now))
                  .first->second;
  for (auto early = early_launchers_.begin(); early != early_launchers_.end();) {
    if (early->second.hello.job != hello.job) {
      ++early;
      continue;
    }
    const SessionId session = early->first;
    sessions_[session] = &job;
    job.OnLauncherHello(session, early->second.hello, now);
    for (const auto& [worker, attest] : early->second.attests) job.OnMessage(session, attest, now);
    early = early_launchers_.erase(early);
  }
}

void Coordinator::OnLauncherHello(const Received& received, const LauncherHello& hello,
                                  Instant now) {
  if (hello.major != kProtocolMajor) {
    Refuse(received.session, Code::kUnimplemented,
           fmt::format("this coordinator speaks protocol {}, the launcher {}", kProtocolMajor,
                       hello.major));
    return;
  }
  const auto it = jobs_.find(hello.job);
  if (it == jobs_.end()) {
    early_launchers_[received.session] = {hello, {}};
    Welcome welcome;
    welcome.lease = kDefaultFailureTimeout;
    welcome.heartbeat_interval = kDefaultFailureTimeout / kHeartbeatsPerLease;
    welcome.autonomy = config_.autonomy;
    effects_.sends.push_back({received.session, welcome});
    return;
  }
  sessions_[received.session] = it->second.get();
  if (!it->second->OnLauncherHello(received.session, hello, now)) {
    sessions_.erase(received.session);
    End(received.session);
  }
}

}  // namespace muster::coordinator
