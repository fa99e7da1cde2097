// Faults: drawn from the seed, spread over the faulty phase, healed at its end.
#include <fmt/format.h>

#include "chaos/sim/cluster.h"

namespace muster::sim {

void Cluster::PlanFaults() {
  const auto span = static_cast<std::uint64_t>(options_.faulty_phase.nanos() * 9 / 10);
  for (int i = 0; i < options_.faults; ++i) {
    events_.After(Duration::Nanos(static_cast<std::int64_t>(prng_.Below(span))),
                  [this] { InjectFault(); });
  }
}

void Cluster::InjectFault() {
  Process& p = *processes_[prng_.Below(processes_.size())];
  const Duration how_long = Duration::Millis(static_cast<std::int64_t>(prng_.Below(6000)));
  switch (prng_.Below(5)) {
    case 0:
      if (!options_.kills || !p.alive) return;
      KillProcess(p);
      events_.After(how_long, [this, &p] {
        if (!p.alive) StartProcess(p);
      });
      return;
    case 1:
      if (!options_.pauses || !p.alive || p.paused) return;
      Trace(fmt::format("pause w{}", p.index));
      p.paused = true;
      events_.After(how_long, [this, &p, life = p.life] {
        if (p.life != life || !p.alive) return;
        Trace(fmt::format("wake w{}", p.index));
        p.paused = false;
        auto missed = std::move(p.missed);
        p.missed.clear();
        for (auto& what : missed) what();
        Pump(p);
      });
      return;
    case 2:
      if (!options_.coordinator_crashes || !coordinator_) return;
      CrashCoordinator();
      events_.After(how_long, [this] {
        if (!coordinator_) StartCoordinator();
      });
      return;
    case 3:
      if (!options_.partitions || !p.alive || p.cut_off) return;
      Trace(fmt::format("cut off w{}", p.index));
      p.cut_off = true;  // packets vanish in both directions, without a FIN
      events_.After(how_long, [this, &p, life = p.life] {
        if (p.life != life) return;
        MendLink(p);
      });
      return;
    case 4:
      if (!options_.leaves || !p.alive || p.paused) return;
      Tell(p, worker::LeaveWanted{"asked by the simulator", {}});
      return;
    default: return;
  }
}

// What was sent meanwhile is lost, so the connection cannot have lived through it.
void Cluster::MendLink(Process& p) {
  if (!p.cut_off) return;
  Trace(fmt::format("reconnect w{}", p.index));
  p.cut_off = false;
  if (!p.alive || p.connection == SessionId()) return;
  Hangup(p);
  Later(p, Duration::Micros(1), [this, &p, number = p.dial] {
    Tell(p, worker::Disconnected{number, Unavailable("reset")});
  });
}

void Cluster::Heal() {
  Trace("peace");
  if (!coordinator_) StartCoordinator();
  for (const auto& p : processes_) {
    if (p->cut_off) MendLink(*p);
    if (!p->alive) StartProcess(*p);
    if (!p->paused) continue;
    p->paused = false;
    auto missed = std::move(p->missed);
    p->missed.clear();
    for (auto& what : missed) what();
    Pump(*p);
  }
}

}  // namespace muster::sim
