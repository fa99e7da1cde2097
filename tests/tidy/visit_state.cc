// Classes whose states are compared (VisitState) list all of their members there, or say why not.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "tests/tidy/checks.h"
#include "tests/tidy/source.h"

namespace muster::tidy {
namespace {

struct LeftOut {
  std::string_view path;
  std::string_view member;
  std::string_view why;
};
constexpr std::array kLeftOut = {
    LeftOut{"worker/core/session.h", "identity_", "fixed for the life of the process"},
    LeftOut{"worker/core/session.h", "prng_", "see Session::Reseed"},
    LeftOut{"worker/core/session.h", "effects_", "taken after each input"},
    LeftOut{"worker/core/session.h", "connection_", "a number; only the newest dial counts"},
    LeftOut{"worker/core/session.h", "next_complaint_", "when to log again"},
    LeftOut{"worker/core/session.h", "observed_address_", "shown to users alone"},
    LeftOut{"worker/core/session.h", "abort_ms_", "a measurement"},
    LeftOut{"worker/core/session.h", "open_loss_", "a measurement"},
    LeftOut{"worker/core/session.h", "loss_", "a measurement"},
    LeftOut{"coordinator/core/coordinator.h", "config_", "does not change"},
    LeftOut{"coordinator/core/coordinator.h", "prng_", "what it draws only has to be fresh"},
    LeftOut{"coordinator/core/coordinator.h", "effects_", "taken after each input"},
    LeftOut{"coordinator/core/coordinator.h", "sessions_", "the jobs know their sessions"},
    LeftOut{"coordinator/core/job.h", "config_", "does not change"},
    LeftOut{"coordinator/core/job.h", "by_session_", "the workers know their sessions"},
    LeftOut{"coordinator/core/job.h", "by_node_", "the workers know their nodes"},
    LeftOut{"coordinator/core/job.h", "latest_members_", "of record_"},
    LeftOut{"coordinator/core/job.h", "before_members_", "of before_"},
    LeftOut{"coordinator/core/job.h", "gone_", "of record_"},
    LeftOut{"coordinator/core/job.h", "tally_", "counts the workers"},
    LeftOut{"coordinator/core/job.h", "attested_count_", "counts attested_"},
    LeftOut{"coordinator/core/job.h", "prng_", "the coordinator's"},
    LeftOut{"coordinator/core/job.h", "effects_", "the coordinator's"},
    LeftOut{"coordinator/core/job.h", "members_", "those of record_.started"},
    LeftOut{"coordinator/core/job.h", "loss_", "a measurement"},
    LeftOut{"coordinator/core/job.h", "incidents_", "history for status"},
    LeftOut{"coordinator/core/job.h", "incident_count_", "history for status"},
    LeftOut{"coordinator/core/job.h", "reforms_", "history for status"},
    LeftOut{"coordinator/core/checkpoint_tracker.h", "aborted_", "history for status"},
    LeftOut{"chaos/sim/network.h", "next_", "session numbers are compared by their order"},
    LeftOut{"chaos/sim/network.h", "cut_", "asked for each session that is told of"},
    LeftOut{"chaos/sim/checkers/autonomy.h", "beats_", "the session's lease has the same ones"},
    LeftOut{"chaos/sim/checkers/reforming.h", "join_window_", "does not change"},
    LeftOut{"chaos/sim/checkers/reforming.h", "settle_", "does not change"},
    LeftOut{"chaos/sim/checkers/reforming.h", "settling_", "status is not watched there"},
    LeftOut{"chaos/sim/checkers/reforming.h", "settling_for_", "status is not watched there"},
    LeftOut{"chaos/sim/checkers/exact_data.h", "spec_", "does not change"},
    LeftOut{"chaos/sim/checkers/safe_checkpoints.h", "elements_", "does not change"},
};

bool IsIdentifier(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// "workers_" for "  std::map<Member, Worker> workers_ = …;": a member of the class that the file is
// about; "" for any other line.
std::string_view MemberOn(std::string_view line) {
  if (!line.starts_with("  ") || line.size() < 3 || line[2] == ' ') return "";
  line = line.substr(0, line.find_last_not_of(' ') + 1);
  if (!line.ends_with(';')) return "";
  line = line.substr(0, line.find_first_of("={;"));
  line = line.substr(0, line.find_last_not_of(' ') + 1);
  std::size_t begin = line.size();
  while (begin > 0 && IsIdentifier(line[begin - 1])) --begin;
  const std::string_view name = line.substr(begin);
  return name.size() > 1 && name.ends_with('_') && begin > 2 ? name : "";
}

bool IsLeftOut(std::string_view path, std::string_view member) {
  return std::ranges::any_of(
      kLeftOut, [&](const LeftOut& one) { return one.path == path && one.member == member; });
}

}  // namespace

Findings CheckVisitState(const std::string& path, std::string_view text) {
  Findings findings;
  const std::string code = BlankNonCode(text);
  const std::size_t begin = code.find("void VisitState(");
  if (!path.ends_with(".h") || begin == std::string::npos) return findings;
  const std::string_view body =
      std::string_view(code).substr(begin, code.find("\n  }", begin) - begin);
  int line = 0;
  for (const std::string_view one : SplitLines(code)) {
    ++line;
    const std::string_view member = MemberOn(one);
    if (member.empty()) continue;
    const bool visited = !FindWord(body, member).empty();
    const bool left_out = IsLeftOut(path, member);
    if (visited == left_out) {
      findings.push_back(Finding{path, line,
                                 std::string(member) + (visited ? " is visited and left out"
                                                                : " is missing in VisitState")});
    }
  }
  for (const LeftOut& one : kLeftOut) {
    if (one.path == path && FindWord(code, one.member).empty()) {
      findings.push_back(Finding{path, 0, std::string(one.member) + " is left out, but not there"});
    }
  }
  return findings;
}

}  // namespace muster::tidy
