#include "tests/coordinator/core/scenario.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "tests/coordinator/core/show.h"

namespace muster::coordinator {

namespace {

Duration ParseDuration(const std::string& text) {
  std::size_t end = 0;
  const std::int64_t number = std::stoll(text, &end);
  const std::string unit = text.substr(end);
  if (unit == "ms") return Duration::Millis(number);
  if (unit == "m") return Duration::Seconds(60 * number);
  EXPECT_TRUE(unit == "s" || (unit.empty() && number == 0)) << text;
  return Duration::Seconds(number);
}

// "5-1,20-3": the checkpoints of step 5, generation 1 and of step 20, generation 3.
Found ParseFound(const std::string& text) {
  Found found;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const std::size_t dash = word.find('-');
    const CheckpointKey key{Step(std::stoll(word)), Generation(std::stoll(word.substr(dash + 1)))};
    found.highest = std::max(found.highest, key.generation);
    found.checkpoints.push_back({key, Lineage(1), 2, 7, 100});
  }
  return found;
}

bool IsKeyword(const std::string& word) {
  static const std::set<std::string> keywords = {
      "able",    "explicit", "attached",  "stopped", "waiting",    "lost",
      "bad",     "finish",   "failed",    "empty",   "dead",       "alive",
      "aborted", "again",    "unstarted", "pinned",  "contradicts"};
  return keywords.contains(word) || (word[0] >= '0' && word[0] <= '9');
}

}  // namespace

bool Scenario::Words::Has(const std::string& word) const {
  return std::ranges::find(names, word) != names.end();
}

std::int64_t Scenario::Words::Number(const std::string& key, std::int64_t otherwise) const {
  const auto it = options.find(key);
  return it == options.end() ? otherwise : std::stoll(it->second);
}

Driver& Scenario::driver() {
  if (driver_ == nullptr) driver_ = std::make_unique<Driver>(config_);
  return *driver_;
}

Scenario::Puppet& Scenario::Get(const std::string& name) {
  auto [it, fresh] = puppets_.try_emplace(name);
  if (fresh) {
    const auto dot = name.find('.');
    it->second.member.worker = WorkerId(name.substr(0, dot));
    it->second.member.incarnation =
        Incarnation(dot == std::string::npos ? 1 : std::stoull(name.substr(dot + 1)));
    it->second.pid = ++next_pid_;
  }
  return it->second;
}

std::vector<std::string> Scenario::Workers(const Words& words) const {
  std::vector<std::string> workers;
  for (const std::string& name : words.names) {
    if (!IsKeyword(name)) workers.push_back(name);
  }
  return workers;
}

std::string Scenario::NameOf(SessionId session) const {
  const auto it = sessions_.find(session);
  return it == sessions_.end() ? "?" : it->second;
}

std::size_t Scenario::LineageNumber(Lineage lineage) {
  auto it = std::ranges::find(lineages_, lineage);
  if (it == lineages_.end()) it = lineages_.insert(it, lineage);
  return static_cast<std::size_t>(it - lineages_.begin()) + 1;
}

void Scenario::Run(const std::string& line) {
  Words words;
  std::istringstream in(line);
  in >> words.verb;
  for (std::string word; in >> word;) {
    const auto equals = word.find('=');
    if (equals == std::string::npos) {
      words.names.push_back(word);
    } else {
      words.options[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
  if (words.verb == "config") {
    Config(words);
  } else if (words.verb == "job") {
    Job(words);
  } else if (!WorkerCommand(words) && !OtherCommand(words)) {
    ADD_FAILURE() << "no such command: " << line;
  }
  Deliver();
}

void Scenario::Config(const Words& words) {
  ASSERT_EQ(driver_, nullptr) << "config comes first";
  const std::map<std::string, Duration*> durations = {
      {"settle", &config_.settle},
      {"join_window", &config_.join_window},
      {"growth_interval", &config_.growth_interval},
      {"forming_timeout", &config_.forming_timeout},
      {"autonomy", &config_.autonomy},
      {"progress_timeout", &config_.progress_timeout},
      {"first_step_timeout", &config_.first_step_timeout},
      {"checkpoint_timeout", &config_.checkpoint_timeout},
      {"max_patience", &config_.max_patience},
      {"cooldown", &config_.cooldown},
      {"max_cooldown", &config_.max_cooldown},
      {"cooldown_forgiveness", &config_.cooldown_forgiveness}};
  for (const auto& [key, value] : words.options) {
    if (key == "attempts") {
      config_.max_forming_attempts = std::stoi(value);
    } else if (key == "skips") {
      config_.max_consecutive_skips = std::stoi(value);
    } else {
      ASSERT_TRUE(durations.contains(key)) << key;
      *durations.at(key) = ParseDuration(value);
    }
  }
}

void Scenario::Job(const Words& words) {
  spec_.min_workers = static_cast<std::int32_t>(words.Number("min", 1));
  spec_.max_workers = static_cast<std::int32_t>(words.Number("max", 4));
  spec_.steps = words.Number("steps", 1000);
  spec_.samples = 1000;
  spec_.global_batch = spec_.micro_batches = 64;
  spec_.checkpoint_every = words.Number("every", 0);
  spec_.checkpoint_keep = static_cast<std::int32_t>(words.Number("keep", 3));
  if (words.options.contains("lease")) {
    spec_.failure_timeout = ParseDuration(words.options.at("lease"));
  }
  spec_.tensors = {{"model", DType::kFloat32, {8}, -1}};
  const bool sharded =
      words.options.contains("tensors") && words.options.at("tensors") == "sharded";
  if (sharded) spec_.tensors.push_back({"moments", DType::kFloat32, {8}, 0});
  spec_.checkpoint_directory = sharded || spec_.checkpoint_every > 0 ? "/checkpoints" : "";
}

void Scenario::Send(Puppet& puppet, Message message) {
  if (puppet.session == SessionId()) return;
  driver().Receive(puppet.session, std::move(message));
  Deliver();
}

void Scenario::Hello(const Words& words) {
  for (const std::string& name : Workers(words)) {
    Puppet& puppet = Get(name);
    puppet.able = puppet.able || words.Has("able") || words.verb == "join";
    if (words.options.contains("node")) puppet.node = NodeName(words.options.at("node"));
    if (words.options.contains("pid")) puppet.pid = words.Number("pid", 0);
    muster::Hello hello;
    hello.major = static_cast<int>(words.Number("major", kProtocolMajor));
    hello.job = JobName("job");
    hello.member = puppet.member;
    hello.explicit_name = words.Has("explicit");
    hello.node = puppet.node;
    hello.pid = puppet.pid;
    hello.address = ":1";
    hello.able = puppet.able;
    hello.spec = spec_;
    hello.highest = Generation(words.Number("highest", puppet.highest.value()));
    if (words.Has("attached")) {
      Attachment& attachment = hello.attachment.emplace();
      if (puppet.assigned) attachment.record = *puppet.assigned;
      // An assignment that was lost on the way.
      const auto older = puppet.records.find(Generation(words.Number("record", 0)));
      if (older != puppet.records.end()) attachment.record = older->second;
      attachment.started =
          puppet.started && puppet.started->generation == attachment.record.generation;
      attachment.committed = puppet.committed;
      attachment.stopped = words.Has("stopped");
      attachment.aborted_for = words.Has("aborted") ? puppet.forming : Generation();
      attachment.aborted_for = Generation(words.Number("aborted", attachment.aborted_for.value()));
    }
    if (const auto it = words.options.find("found"); it != words.options.end()) {
      hello.found = ParseFound(it->second);
    }
    if (!words.Has("again")) {
      puppet.session = SessionId(++next_session_);
      sessions_[puppet.session] = name;
    }
    Send(puppet, hello);
  }
}

void Scenario::Ready(const Words& words) {
  for (const std::string& name : Workers(words)) {
    Puppet& puppet = Get(name);
    muster::Ready ready;
    ready.forming = Generation(words.Number("for", puppet.forming.value()));
    if (puppet.started) {
      ready.generation = puppet.started->generation;
      ready.lineage = puppet.started->lineage;
    }
    puppet.committed = Step(words.Number("committed", puppet.committed.value()));
    ready.committed = puppet.committed;
    Wishes wishes;
    if (const auto it = words.options.find("wishes"); it != words.options.end()) {
      wishes.checkpoint = it->second.find("ckpt") != std::string::npos;
      wishes.reform = it->second.find("reform") != std::string::npos;
    }
    if (words.options.contains("open") || words.options.contains("prepared")) {
      OpenStep& open = ready.open.emplace();
      open.step = Step(words.Number("open", puppet.committed.value() + 1));
      if (const auto it = words.options.find("prepared"); it != words.options.end()) {
        open.prepared = true;
        open.vote = it->second == "skip" ? Outcome::kSkip : Outcome::kApply;
        open.wishes = wishes;
      }
    } else {
      ready.wishes = wishes;
    }
    ready.holds_state = puppet.started.has_value() && !words.Has("lost");
    ready.abort_ms = 2;
    Send(puppet, ready);
  }
}

// The rank of a worker in the record that another one has.
Rank Scenario::RankOf(const std::string& name, const Puppet& in) const {
  const auto it = puppets_.find(name);
  if (it == puppets_.end() || !in.assigned) return Rank(-1);
  for (const MemberEntry& entry : in.assigned->members) {
    if (entry.member == it->second.member) return entry.rank;
  }
  return Rank(-1);
}

void Scenario::GroupId(const Words& words) {
  for (const std::string& name : Workers(words)) {
    Puppet& puppet = Get(name);
    muster::GroupId group;
    group.generation = Generation(words.Number("for", puppet.forming.value()));
    const auto id = words.options.find("id");
    group.id = id == words.options.end() ? fmt::format("id-{}-g{}", name, group.generation.value())
                                         : id->second;
    Send(puppet, group);
  }
}

void Scenario::FormFailed(const Words& words) {
  Puppet& puppet = Get(words.names.at(0));
  muster::FormFailed failed;
  // Of the record that it has, perhaps given up since.
  failed.generation = puppet.assigned ? puppet.assigned->generation : puppet.forming;
  failed.reason = "as asked";
  failed.code = Code::kUnavailable;
  if (words.options.contains("peer")) failed.peer = RankOf(words.options.at("peer"), puppet);
  failed.contradicts = words.Has("contradicts");
  failed.reading = words.Has("reading") || words.Has("bad") || failed.contradicts;
  if (words.Has("bad")) {
    failed.code = Code::kDataLoss;
    failed.bad_checkpoint = puppet.assigned->restore.checkpoint;
  }
  Send(puppet, failed);
}

void Scenario::OperationFailed(const Words& words) {
  Puppet& puppet = Get(words.names.at(0));
  muster::OperationFailed failed;
  failed.generation = puppet.started ? puppet.started->generation : Generation();
  failed.step = puppet.committed.Next();
  failed.code = Code::kUnavailable;
  failed.reason = "connection reset";
  if (words.options.contains("peer")) failed.peer = RankOf(words.options.at("peer"), puppet);
  Send(puppet, failed);
}

void Scenario::SendBeat(Puppet& puppet) {
  puppet.beat.generation = puppet.started ? puppet.started->generation : Generation();
  puppet.beat.committed = puppet.committed;
  ++puppet.beat.sequence;
  Send(puppet, puppet.beat);
}

void Scenario::Beat(const Words& words) {
  for (const std::string& name : Workers(words)) {
    Puppet& puppet = Get(name);
    if (words.options.contains("step")) puppet.committed = Step(words.Number("step", 0));
    if (words.options.contains("ops")) {
      puppet.beat.operations = static_cast<std::uint64_t>(words.Number("ops", 0));
    }
    puppet.beat.waiting = words.Has("waiting");
    puppet.beat.skips = words.Number("skips", 0);
    puppet.beat.phase = words.options.contains("phase") ? "evaluation" : "";
    if (words.options.contains("phase")) {
      puppet.beat.phase_left = ParseDuration(words.options.at("phase"));
    }
    if (words.options.contains("stage")) {
      puppet.beat.stage = words.options.at("stage") == "forming" ? Stage::kForming : Stage::kReduce;
    }
    SendBeat(puppet);
  }
}

void Scenario::Advance(const std::string& text) {
  driver().RunUntil(driver().now() + ParseDuration(text), Duration::Millis(100), [this] {
    Deliver();
    for (auto& [name, puppet] : puppets_) {
      if (puppet.session != SessionId() && !puppet.silent) SendBeat(puppet);
    }
  });
}

}  // namespace muster::coordinator
