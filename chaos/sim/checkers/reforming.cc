#include "chaos/sim/checkers/reforming.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace muster::sim {

namespace {

// The greatest step above `step` at which these pieces hold every element; `step` when none is.
Step BestStep(std::vector<Piece> pieces, Step step, std::int64_t elements) {
  std::ranges::sort(pieces, {}, &Piece::lo);
  Step best = step;
  for (const Piece& candidate : pieces) {
    if (candidate.step <= best) continue;
    std::int64_t next = 0;
    for (const Piece& piece : pieces) {
      if (piece.step == candidate.step && piece.lo <= next) next = std::max(next, piece.hi);
    }
    if (next >= elements) best = candidate.step;
  }
  return best;
}

}  // namespace

void Reforming::OnRecord(const JobRecord& record, const std::vector<Holder>& holders,
                         std::int64_t elements, Verdict& verdict) {
  if (!record.latest) return;
  if (record.latest_started && record.latest->generation != started_) {
    started_ = record.latest->generation;
    members_before_ = std::exchange(members_, {});
    for (const MemberEntry& entry : record.latest->members) members_.insert(entry.member);
  }
  if (record.latest->generation == judged_) return;
  const GenerationRecord& latest = *record.latest;
  judged_ = latest.generation;
  const std::string name = fmt::format("generation {}", latest.generation.value());
  if (latest.world_size() < record.spec.min_workers ||
      latest.world_size() > record.spec.max_workers) {
    verdict.Violate("L1", fmt::format("{} has {} members, not {} to {}", name, latest.world_size(),
                                      record.spec.min_workers, record.spec.max_workers));
  }
  if (latest.restore.source == RestoreSource::kLive || !record.started) return;
  // A record before has made them drop what they held.
  const bool again = record.started->generation == given_up_;
  given_up_ = record.started->generation;
  if (again) return;
  std::vector<Piece> pieces;
  for (const Holder& holder : holders) pieces.push_back(holder.held);
  const Step best = BestStep(std::move(pieces), latest.restore.step, elements);
  if (best > latest.restore.step) {
    verdict.Violate("L1", fmt::format("{} goes back to step {}, but members with whom nothing is "
                                      "wrong hold step {}",
                                      name, latest.restore.step.value(), best.value()));
  }
}

void Reforming::OnStarted(const coordinator::Incident& incident, const JobSpec& spec,
                          Verdict& verdict) const {
  if (incident.cause != Cause::kGrowth || incident.world_before < spec.max_workers) return;
  if (members_ != members_before_) return;  // a leaver's place was taken in one go
  verdict.Violate("L1", fmt::format("generation {} was formed to grow, but {} was full",
                                    incident.to.value(), incident.from.value()));
}

void Reforming::OnWaiting(Generation forming, const std::string& waiting_for, Instant now,
                          Verdict& verdict) {
  if (forming != settling_for_) settling_.reset();
  settling_for_ = forming;
  if (waiting_for.find("failures that belong together") == std::string::npos) {
    settling_.reset();
    return;
  }
  if (!settling_) settling_ = now;
  if (now - *settling_ <= settle_) return;
  verdict.Violate("L1", fmt::format("for {:.1f} s it has waited for further failures",
                                    (now - *settling_).ToSeconds()));
}

void Reforming::OnFirstFormation(Instant quorum, Instant now, Verdict& verdict) const {
  if (now - quorum <= join_window_) return;
  verdict.Violate("L1", fmt::format("enough workers were there for {:.1f} s before the first "
                                    "generation was formed",
                                    (now - quorum).ToSeconds()));
}

}  // namespace muster::sim
