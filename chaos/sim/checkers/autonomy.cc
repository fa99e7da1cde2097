#include "chaos/sim/checkers/autonomy.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster::sim {

namespace {
constexpr std::size_t kBeatsKept = 64;
// What clocks may differ by in a span of this length.
Duration Slack(Duration span) { return span / 1000 + Duration::Micros(10); }
}  // namespace

void Contact::OnHello(Instant now) {
  hello_ = asked_ = now;
  beats_.clear();
}

void Contact::OnWelcome() { answered_ = std::max(answered_, hello_); }

void Contact::OnBeat(std::int64_t sequence, Instant now) {
  asked_ = now;
  beats_[sequence] = now;
  if (beats_.size() > kBeatsKept) beats_.erase(beats_.begin());
}

void Contact::OnAck(std::int64_t sequence) {
  const auto it = beats_.find(sequence);
  if (it == beats_.end()) return;
  answered_ = std::max(answered_, it->second);
  beats_.erase(beats_.begin(), std::next(it));
}

void Contact::OnCommit(const std::string& who, Duration lease, Duration autonomy, bool connected,
                       Instant now, Verdict& verdict) const {
  const Duration silent = now - answered_;
  if (silent > autonomy + Slack(autonomy)) {
    verdict.Violate("S1", fmt::format("{} shows an outcome, {:.3f} s after the coordinator last "
                                      "answered it: longer than it may go on alone",
                                      who, silent.ToSeconds()));
  }
  // On a session that has been up since it was answered last, it asks before it goes on.
  const bool up = connected && hello_ < answered_;
  if (up && silent > lease + Slack(lease) && asked_ - answered_ <= lease - Slack(lease)) {
    verdict.Violate("S1", fmt::format("{} shows an outcome, {:.3f} s after the coordinator last "
                                      "answered it, and has not asked",
                                      who, silent.ToSeconds()));
  }
}

}  // namespace muster::sim
