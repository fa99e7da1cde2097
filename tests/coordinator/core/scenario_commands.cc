// The commands that are only a message, and what the puppets remember of the coordinator's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/coordinator/core/scenario.h"
#include "tests/coordinator/core/show.h"

namespace muster::coordinator {

namespace {

Duration Parse(const std::string& text) {
  const std::int64_t number = std::stoll(text);
  return text.ends_with("ms") ? Duration::Millis(number) : Duration::Seconds(number);
}

}  // namespace

bool Scenario::WorkerCommand(const Words& words) {
  const std::string& verb = words.verb;
  if (verb == "hello" || verb == "join") {
    Hello(words);
  } else if (verb == "ready") {
    Ready(words);
  } else if (verb == "groupid") {
    GroupId(words);
  } else if (verb == "formfailed") {
    FormFailed(words);
  } else if (verb == "opfailed") {
    OperationFailed(words);
  } else if (verb == "beat") {
    Beat(words);
  } else if (verb == "shard" || verb == "shardfailed" || verb == "manifest" || verb == "removed") {
    Checkpoint(words);
  } else if (verb == "able" || verb == "formed" || verb == "stopped" || verb == "leave" ||
             verb == "finished" || verb == "close" || verb == "silent" || verb == "speak" ||
             verb == "step" || verb == "garbage") {
    for (const std::string& name : Workers(words)) {
      Puppet& puppet = Get(name);
      const Generation started = puppet.started ? puppet.started->generation : Generation();
      if (verb == "able") {
        puppet.able = true;
        Send(puppet, Able{});
      } else if (verb == "formed") {
        Send(puppet, Formed{puppet.forming, 3, 1, 0});
      } else if (verb == "stopped") {
        Send(puppet, Stopped{started, puppet.committed});
      } else if (verb == "leave") {
        const auto within = words.options.find("within");
        Send(puppet, Leave{"asked", words.Has("finish"),
                           within == words.options.end() ? Duration() : Parse(within->second)});
      } else if (verb == "finished") {
        Send(puppet, Finished{started, puppet.committed});
      } else if (verb == "garbage") {
        Send(puppet, Interrupt{});
      } else if (verb == "step") {
        puppet.committed = Step(std::stoll(words.names.at(0)));
        SendBeat(puppet);
      } else if (verb == "close") {
        driver().Handle(Closed{std::exchange(puppet.session, SessionId())});
      } else {
        puppet.silent = verb == "silent";
      }
      Deliver();
    }
  } else {
    return false;
  }
  return true;
}

void Scenario::Checkpoint(const Words& words) {
  const Step step(std::stoll(words.names.at(0)));
  if (words.verb == "manifest" || words.verb == "removed") {
    std::vector<std::string> by = Workers(words);
    if (by.empty() && manifest_) by.push_back(manifest_->first);
    ASSERT_FALSE(by.empty()) << "nobody was told to";
    const Generation generation(
        words.Number("gen", manifest_ ? manifest_->second.generation.value() : 1));
    if (words.verb == "removed") {
      Send(Get(by[0]), CheckpointRemoved{{step, generation}, words.Has("pinned")});
    } else {
      ManifestWritten written;
      written.key = {step, generation};
      written.digest = 7;
      written.code = words.Has("failed") ? Code::kResourceExhausted : Code::kOk;
      Send(Get(by[0]), written);
    }
    return;
  }
  for (const std::string& name : Workers(words)) {
    Puppet& puppet = Get(name);
    const Generation generation(words.Number("gen", puppet.started->generation.value()));
    const auto known = puppet.records.find(generation);
    const GenerationRecord& record =
        known == puppet.records.end() ? *puppet.started : known->second;
    std::int64_t own_rank = -1;
    for (const MemberEntry& entry : record.members) {
      if (entry.member == puppet.member) own_rank = entry.rank.value();
    }
    const Rank rank(static_cast<std::int32_t>(words.Number("rank", own_rank)));
    if (words.verb == "shardfailed") {
      Send(puppet, ShardFailed{{step, generation}, rank, Code::kResourceExhausted, "disk full"});
      continue;
    }
    ShardWritten shard;
    shard.key = {step, generation};
    shard.lineage = record.lineage;
    shard.world_size = record.world_size();
    shard.file = {fmt::format("r{}", rank.value()), 100, 1, rank};
    Send(puppet, shard);
  }
}

void Scenario::Launcher(const Words& words) {
  if (words.verb == "attest") {
    Puppet& puppet = Get(words.names.at(0));
    const auto launcher = launchers_.find(puppet.node.value());
    ASSERT_NE(launcher, launchers_.end());
    Attest attest;
    attest.worker = puppet.member.worker;
    attest.pid = puppet.pid;
    attest.alive = words.Has("alive");
    driver().Receive(launcher->second, attest);
    return;
  }
  const std::string& node = words.names.at(0);
  if (words.verb == "launcherclosed") {
    driver().Handle(Closed{launchers_.at(node)});
    launchers_.erase(node);
    return;
  }
  launchers_[node] = SessionId(++next_session_);
  sessions_[launchers_[node]] = "launcher-" + node;
  driver().Receive(launchers_[node],
                   LauncherHello{kProtocolMajor, kProtocolMinor, JobName("job"), NodeName(node)});
}

void Scenario::Train(const Words& words) {
  std::string who;
  for (const std::string& name : Workers(words)) who += " " + name;
  Run("join" + who);
  if (puppets_.begin()->second.forming == Generation()) Run("advance 5s");  // the join window
  Run("ready" + who);
  Run("formed" + who);
  if (spec_.tensors.size() > 1) {  // sharded: no step before the checkpoint of step 0
    Run("shard 0" + who);
    Run("manifest 0");
  }
  Run("step " + words.names.at(0) + who);
  pending_ = Effects{};
}

void Scenario::Restart(bool empty) {
  for (auto& [name, puppet] : puppets_) puppet.session = SessionId();
  launchers_.clear();
  driver().Restart(empty);
}

void Scenario::Drain(const Words& words) {
  coordinator::Drain drain;
  drain.job = JobName("job");
  for (const std::string& name : Workers(words)) drain.worker = WorkerId(name);
  if (words.options.contains("node")) drain.node = NodeName(words.options.at("node"));
  if (words.options.contains("within")) drain.within = Parse(words.options.at("within"));
  drain.undo = words.verb == "undrain";
  driver().Handle(drain);
}

bool Scenario::OtherCommand(const Words& words) {
  const std::string& verb = words.verb;
  if (verb == "launcher" || verb == "launcherclosed" || verb == "attest") {
    Launcher(words);
  } else if (verb == "train") {
    Train(words);
  } else if (verb == "advance") {
    Advance(words.names.at(0));
  } else if (verb == "lag") {
    driver().Handle(Lagged{Parse(words.names.at(0))});
  } else if (verb == "restart") {
    Restart(words.Has("empty"));
  } else if (verb == "force") {
    driver().Handle(ForceAdopt{JobName("job")});
  } else if (verb == "drain" || verb == "undrain") {
    Drain(words);
  } else if (verb == "describe") {
    const auto view = driver().core().Describe(JobName("job"), driver().now());
    output_ += view ? Show(*view) : "no such job\n";
  } else if (verb == "store") {
    for (const auto& [name, stored] : driver().store()) {
      output_ += fmt::format("{}, lineage {}\n", Show(stored.record),
                             LineageNumber(stored.record.lineage));
      for (const CheckpointEntry& entry : stored.checkpoints) {
        output_ += "  " + Show(entry.record.key) + "\n";
      }
    }
  } else {
    return false;
  }
  return true;
}

// Hands the coordinator's messages to the puppets, which only remember them.
void Scenario::Deliver() {
  Effects fresh = driver().Take();
  for (const coordinator::Send& send : fresh.sends) {
    const auto it = sessions_.find(send.to);
    if (it == sessions_.end()) continue;
    const auto puppet = puppets_.find(it->second);
    if (puppet != puppets_.end() && puppet->second.session == send.to) {
      DeliverTo(puppet->second, send.message);
    }
    if (const auto* order = std::get_if<WriteManifest>(&send.message)) {
      manifest_ = {it->second, order->record.key};
    }
  }
  for (const SessionId session : fresh.closes) {
    for (auto& [name, puppet] : puppets_) {
      if (puppet.session == session) puppet.session = SessionId();
    }
  }
  const auto append = [](auto& to, auto& from) {
    std::move(from.begin(), from.end(), std::back_inserter(to));
  };
  append(pending_.persist, fresh.persist);
  append(pending_.sends, fresh.sends);
  append(pending_.closes, fresh.closes);
  append(pending_.events, fresh.events);
}

void Scenario::DeliverTo(Puppet& puppet, const Message& message) {
  if (const auto* interrupt = std::get_if<Interrupt>(&message)) {
    if (interrupt->generation > puppet.highest) puppet.forming = interrupt->generation;
    puppet.highest = std::max(puppet.highest, interrupt->generation);
  } else if (const auto* assign = std::get_if<Assign>(&message)) {
    puppet.assigned = *assign->record;
    puppet.records[assign->record->generation] = *assign->record;
    puppet.committed = assign->record->restore.step;
  } else if (std::holds_alternative<Start>(message)) {
    puppet.started = puppet.assigned;
    puppet.beat = Heartbeat{};
  }
}

std::string Scenario::Take() {
  std::string text = Show(std::exchange(pending_, Effects{}),
                          [this](SessionId session) { return NameOf(session); });
  text += std::exchange(output_, "");
  for (const std::string& broken : driver().violations()) text += "VIOLATION " + broken + "\n";
  return text;
}

}  // namespace muster::coordinator
