// Trust in the lab: each saboteur is convicted, by the right check, and an honest twin of it is
// not.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "chaos/live/process.h"
#include "tests/chaos/sabotage/saboteurs.h"
#include "tests/support/temp_dir.h"

namespace muster::chaos {
namespace {

constexpr Duration kLimit = Duration::Seconds(300);

// The checks that were broken; "no report" when there was none.
std::set<std::string> BrokenChecks(std::string_view scenario, Culprit culprit,
                                   std::string_view sabotage, bool compared, std::string* log) {
  const test::TempDir directory;
  const std::string tests = MUSTER_SABOTAGE_BIN_DIR;
  ProcessOptions command;
  command.argv = {
      std::string(MUSTER_BIN_DIR) + "/muster-chaos",
      "run",
      std::string(MUSTER_SOURCE_DIR) + "/tests/chaos/sabotage/" + std::string(scenario) + ".yaml",
      "--seed",
      "1",
      "--report",
      directory.path() + "/report"};
  if (!compared) command.argv.emplace_back("--no-reference");
  if (culprit == Culprit::kCoordinator) {
    command.argv.insert(command.argv.end(), {"--coordinator", tests + "/musterd-saboteur"});
  }
  command.argv.insert(command.argv.end(), {"--", tests + "/muster-saboteur", "{run}/checkpoints"});
  command.environment = {{"MUSTER_SABOTAGE", std::string(sabotage)}};
  command.output = directory.path() + "/log";
  const Result<int> code = RunToEnd(command, kLimit);
  *log = code.ok() ? ReadFile(command.output) : code.status().ToString();
  const auto report =
      nlohmann::json::parse(ReadFile(directory.path() + "/report/report.json"), nullptr, false);
  if (!report.is_object()) return {"no report"};
  std::set<std::string> broken;
  for (const nlohmann::json& finding : report["findings"]) {
    if (!finding["ok"].get<bool>() && !finding["skipped"].get<bool>()) {
      broken.insert(finding["name"].get<std::string>());
    }
  }
  EXPECT_EQ(code.ok() ? *code : -1, broken.empty() ? 0 : 1);
  return broken;
}

class SabotageTest : public testing::TestWithParam<Saboteur> {};

TEST_P(SabotageTest, IsConvictedByTheRightCheck) {
  const Saboteur& saboteur = GetParam();
  std::string log;
  const auto broken = BrokenChecks(saboteur.scenario, saboteur.culprit, saboteur.name,
                                   saboteur.check == "same_result", &log);
  EXPECT_TRUE(broken.contains(std::string(saboteur.check)))
      << saboteur.name << " " << saboteur.what << "\n"
      << log;
}

class HonestTest : public testing::TestWithParam<const char*> {};

TEST_P(HonestTest, IsNotConvicted) {
  std::string log;
  EXPECT_EQ(BrokenChecks(GetParam(), Culprit::kCoordinator, "", true, &log),
            std::set<std::string>{})
      << log;
}

std::string Identifier(std::string_view text) {
  std::string name(text);
  for (char& letter : name) {
    if (letter == '-') letter = '_';
  }
  return name;
}

std::string NameOfScenario(const testing::TestParamInfo<const char*>& info) {
  return Identifier(info.param);
}

std::string NameOfSaboteur(const testing::TestParamInfo<Saboteur>& info) {
  return Identifier(info.param.name);
}

#ifdef MUSTER_LONG
INSTANTIATE_TEST_SUITE_P(All, SabotageTest, testing::ValuesIn(kSaboteurs), NameOfSaboteur);
INSTANTIATE_TEST_SUITE_P(All, HonestTest,
                         testing::Values("kill-b", "pause-a", "many-kills", "quick-stop",
                                         "kill-one-of-two", "lose-store-then-kill"),
                         NameOfScenario);
#else
INSTANTIATE_TEST_SUITE_P(Some, SabotageTest,
                         testing::Values(kSaboteurs[0], kSaboteurs[2], kSaboteurs[11]),
                         NameOfSaboteur);
INSTANTIATE_TEST_SUITE_P(Some, HonestTest, testing::Values("kill-b"), NameOfScenario);
#endif

}  // namespace
}  // namespace muster::chaos
