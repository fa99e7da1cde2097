// The command language of the golden scenarios: one job, and workers that keep the books of an
// honest one, so that a command says only what matters. A worker is written "a"; "a.2" is its
// second incarnation. N and STEP are numbers, durations are written 500ms, 2s, 10m.
//
// - config join_window=0 settle=50ms …: before anything else, see Config.
// - job min=2 max=4 tensors=sharded steps= every= keep= lease=: the spec of later hellos.
// - train N a b c: joins them, forms generation 1, commits N steps; its output is not shown.
// - join a b: hello and able, each on a new session.
// - hello a: with able, again (on the same session), explicit, attached, stopped, aborted=N,
//   highest=N, found=STEP-N,…, record=N (the last assignment it got), major=N, node=NAME, pid=N.
// - able, formed, stopped, finished, close, garbage a b …; leave a [finish]
//   [within=30s].
// - drain [a] [node=NODE] [within=30s], undrain [a] [node=NODE].
// - silent, speak a …: stops and resumes the heartbeats that `advance` sends.
// - beat a: with step=N, ops=N, waiting, skips=N, phase=30s, stage=forming.
// - step N a b …: they committed step N and say so.
// - ready a …: with committed=N, open=N, prepared=apply|skip, wishes=ckpt,reform, lost, for=N.
// - groupid a [id=TEXT] [for=N]: the id of the generation being formed, by default "id-a-gN".
// - formfailed a [peer=b] [reading] [bad] [contradicts]; opfailed a [peer=b].
// - shard STEP a …; shardfailed STEP a; manifest STEP [failed]; removed STEP
//   [pinned].
// - launcher NODE; launcherclosed NODE; attest a dead|alive.
// - advance 600ms; lag 1s; restart [empty]; force; describe; store.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/coordinator/core/driver.h"

namespace muster::coordinator {

class Scenario {
 public:
  // Executes one line. The effects of it are in Take(). A line that makes no sense fails the
  // running test.
  void Run(const std::string& line);
  // What has come out since the last call, one line per effect; broken promises included.
  [[nodiscard]] std::string Take();

 private:
  struct Puppet {
    Member member;
    NodeName node{"n1"};
    std::int64_t pid = 0;
    SessionId session;  // zero: not connected
    bool able = false;
    bool silent = false;
    Generation highest;
    Generation forming;
    std::optional<GenerationRecord> assigned;  // taken last, started or not
    std::optional<GenerationRecord> started;
    std::map<Generation, GenerationRecord> records;  // all that it was assigned to
    Step committed;
    Heartbeat beat;
  };
  struct Words {
    std::string verb;
    std::vector<std::string> names;  // words without "="
    std::map<std::string, std::string> options;
    [[nodiscard]] bool Has(const std::string& word) const;
    [[nodiscard]] std::int64_t Number(const std::string& key, std::int64_t otherwise) const;
  };

  void Config(const Words& words);
  void Job(const Words& words);
  void Hello(const Words& words);
  void Ready(const Words& words);
  void GroupId(const Words& words);
  void FormFailed(const Words& words);
  void OperationFailed(const Words& words);
  void Beat(const Words& words);
  void Advance(const std::string& text);
  void Checkpoint(const Words& words);
  void Launcher(const Words& words);
  void Train(const Words& words);
  void Restart(bool empty);
  void Drain(const Words& words);
  bool WorkerCommand(const Words& words);
  bool OtherCommand(const Words& words);
  void Send(Puppet& puppet, Message message);
  void SendBeat(Puppet& puppet);
  void Deliver();
  void DeliverTo(Puppet& puppet, const Message& message);
  [[nodiscard]] Puppet& Get(const std::string& name);
  [[nodiscard]] std::vector<std::string> Workers(const Words& words) const;
  [[nodiscard]] Rank RankOf(const std::string& name, const Puppet& in) const;
  [[nodiscard]] std::string NameOf(SessionId session) const;
  // 1 for the first lineage that was shown, and so on.
  [[nodiscard]] std::size_t LineageNumber(Lineage lineage);
  Driver& driver();

  coordinator::Config config_;
  JobSpec spec_;
  std::unique_ptr<Driver> driver_;
  std::map<std::string, Puppet> puppets_;
  std::map<std::string, SessionId> launchers_;
  std::map<SessionId, std::string> sessions_;
  std::optional<std::pair<std::string, CheckpointKey>> manifest_;  // who was told to write which
  std::vector<Lineage> lineages_;
  std::int64_t next_session_ = 0;
  std::int64_t next_pid_ = 100;
  Effects pending_;
  std::string output_;
};

}  // namespace muster::coordinator
