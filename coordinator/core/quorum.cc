#include "coordinator/core/quorum.h"

#include <fmt/format.h>

#include <algorithm>

#include "protocol/mutants.h"

namespace muster::coordinator {

namespace {

std::vector<QuorumMember> Select(const std::vector<QuorumMember>& members, auto predicate) {
  std::vector<QuorumMember> selected;
  std::ranges::copy_if(members, std::back_inserter(selected), predicate);
  return selected;
}

std::string Names(const std::vector<QuorumMember>& whom) {
  constexpr std::size_t kShown = 4;
  std::string text;
  for (std::size_t i = 0; i < whom.size() && i < kShown; ++i) {
    text += fmt::format("{}worker {} last heard {:.1f} s ago", i == 0 ? "" : ", ",
                        whom[i].member.worker.value(), whom[i].silent.ToSeconds());
  }
  if (whom.size() > kShown) text += fmt::format(" and {} more", whom.size() - kShown);
  return text;
}

}  // namespace

std::optional<Wait> AwaitAnswers(const AnswersView& view) {
  const auto& members = *view.members;
  auto unseen = Select(
      members, [](const QuorumMember& m) { return m.survivor && m.standing == Standing::kUnseen; });
  if (!unseen.empty()) return Wait{.reason = WaitReason::kReturn, .whom = std::move(unseen)};
  auto pending =
      Select(members, [](const QuorumMember& m) { return m.standing == Standing::kPending; });
  if (!pending.empty()) return Wait{.reason = WaitReason::kAnswers, .whom = std::move(pending)};
  if (view.now < view.settle_until) {
    return Wait{.reason = WaitReason::kSettle, .whom = {}, .until = view.settle_until};
  }
  const auto usable = std::ranges::count_if(members, [](const QuorumMember& m) {
    return m.standing == Standing::kAnswered && m.able && !m.leaving;
  });
  if (usable < (Planted(Mutant::kBelowMinWorkers) ? 1 : view.min_workers)) {
    auto missing = Select(members, [](const QuorumMember& m) {
      return m.survivor && m.standing != Standing::kAnswered;
    });
    return Wait{.reason = WaitReason::kMinWorkers,
                .whom = std::move(missing),
                .have = static_cast<std::int32_t>(usable),
                .need = view.min_workers};
  }
  return std::nullopt;
}

std::optional<Wait> AwaitHolders(const HoldersView& view) {
  if (view.first) return std::nullopt;
  const auto& members = *view.members;
  auto silent = Select(members, [](const QuorumMember& m) {
    return m.survivor && m.standing == Standing::kSuspect;
  });
  // While no holder is in sight, a silent survivor may be training still, and hold the only state
  // that is left. Once all survivors are dead or known to hold nothing, there is nothing to wait
  // for.
  const bool careful = !Planted(Mutant::kGiveUpLiveState);
  if (careful && !view.holder_answers && !silent.empty() && view.now < view.autonomy_until) {
    return Wait{
        .reason = WaitReason::kAutonomy, .whom = std::move(silent), .until = view.autonomy_until};
  }
  if (!view.rollback) return std::nullopt;
  if (view.save_pending && view.now < view.save_until) {
    return Wait{.reason = WaitReason::kSave, .whom = {}, .until = view.save_until};
  }
  if (!silent.empty() && view.now < view.patience_until) {
    return Wait{
        .reason = WaitReason::kPatience, .whom = std::move(silent), .until = view.patience_until};
  }
  return std::nullopt;
}

std::string ToText(const Wait& wait, Instant now) {
  const auto left = [&] { return std::max(0.0, (wait.until - now).ToSeconds()); };
  switch (wait.reason) {
    case WaitReason::kSettle: return "waiting a moment for failures that belong together";
    case WaitReason::kAnswers:
      return fmt::format("waiting for {} to abort and answer: {}", wait.whom.size(),
                         Names(wait.whom));
    case WaitReason::kReturn:
      return fmt::format("waiting for {} to come back or be given up: {}", wait.whom.size(),
                         Names(wait.whom));
    case WaitReason::kMinWorkers:
      return fmt::format("waiting for workers: {} of at least {} are here{}{}", wait.have,
                         wait.need, wait.whom.empty() ? "" : "; lost: ", Names(wait.whom));
    case WaitReason::kPatience:
      return fmt::format("going on without it would undo steps, so waiting {:.1f} s more: {}",
                         left(), Names(wait.whom));
    case WaitReason::kAutonomy:
      return fmt::format(
          "the last generation may still be training out of sight, so waiting {:.0f} s more: {}",
          left(), Names(wait.whom));
    case WaitReason::kSave:
      return fmt::format("waiting for the checkpoint of the last step, at most {:.0f} s", left());
  }
  return "";
}

}  // namespace muster::coordinator
