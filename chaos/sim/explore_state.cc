// When two states are alike.
#include "chaos/sim/explore.h"
#include "chaos/sim/fingerprint.h"
#include "coordinator/core/job.h"

namespace muster::sim {

// Left out: its index and node, which do not change; the numbers of dials and calls, for pending
// results of former ones have been dropped; what it remembers for the random simulator.
void Explorer::AddProcess(const World& world, const Process& p, Fingerprint& print) {
  print(p.alive, p.haunted_until);
  if (!p.alive) return print(p.at == At::kGone ? p.timer_at : Instant::Never());
  const Instant now = print.time().now;
  print.SetNow(world.LocalNow(p));
  print(*p.session);
  print.SetNow(now);
  print(p.connection, world.network_.IsCut(p.connection), p.at, p.record, p.group, p.awaits_group,
        p.step, p.held, p.next_cut, p.next_cut_of, p.trained, p.agreed, p.op, p.operations,
        p.paused, p.disk_full, p.well_since, p.leaving, p.contact);
}

// Only the order within a channel counts.
std::uint64_t Explorer::QueueOf(const World& world, const Fingerprint& empty) {
  std::map<Channel, Fingerprint> channels;
  std::uint64_t sum = 0;
  for (const auto& [key, pending] : world.queue_.entries()) {
    const auto channel = ChannelOf(pending);
    if (channel) {
      Fingerprint& print = channels.try_emplace(*channel, empty).first->second;
      print(pending.process, pending.what);
      continue;
    }
    Fingerprint print = empty;
    // Whose call ends is said by the process: it is in one at a time.
    if (const auto* ends = std::get_if<OperationEnds>(&pending.what)) {
      print(pending.process, ends->how, ends->peer);
    } else {
      print(pending.process, pending.what);
    }
    sum += print.value();
  }
  for (const auto& [channel, print] : channels) sum += print.value();
  return sum;
}

void Explorer::AddPlanes(const World& world, Fingerprint& print) {
  world.network_.VisitState(
      [&](const auto& up, const auto& down, const auto& peers, const auto& sessions) {
        print(up, down, peers);
        for (const auto& [id, session] : sessions)
          print(session.process, session.node, world.network_.IsCut(id));
      });
  world.data_.VisitState([&](const auto& operations, const auto& gave_up) {
    print(gave_up, operations.size());
    for (const auto& [key, operation] : operations) {
      print(key, operation.record, operation.contributions, operation.inside, operation.complete);
      for (const auto& [rank, call] : operation.calls) print(rank, call.process);
    }
  });
  print(world.disk_.shards, world.disk_.manifests, world.stored_jobs_, world.stored_checkpoints_,
        world.launchers_);
}

std::uint64_t Explorer::FingerprintOf(const Node& node) const {
  const World& world = node.world;
  const Duration horizon = world.config_.autonomy + world.options_.lease * 2;
  const std::vector<SessionId> sessions = world.network_.All();
  const Fingerprint empty({world.now_, options_.unit, horizon}, &sessions);
  Fingerprint print = empty;
  print(node.left, node.relaunches, node.linked);
  for (const Process& p : world.processes_) AddProcess(world, p, print);
  print(world.coordinator_, world.offered_, world.unsynced_.size());
  for (const auto& effects : world.unsynced_) print(effects.persist, effects.sends, effects.closes);
  AddPlanes(world, print);
  print(QueueOf(world, empty));
  print(world.chain_, world.one_generation_, world.step_chain_, world.exact_data_,
        world.safe_checkpoints_, world.durable_decisions_, world.group_ids_, world.reforming_,
        world.quorum_, world.store_lost_, world.took_found_);
  return print.value();
}

}  // namespace muster::sim
