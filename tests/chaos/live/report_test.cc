#include "chaos/live/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/chaos/live/report_fixture.h"

namespace muster::chaos {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::size_t Count(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

class Directory {
 public:
  Directory() {
    std::string name = (std::filesystem::temp_directory_path() / "report-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory() { std::filesystem::remove_all(path_); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(ReportTest, WhatCannotStandInXmlIsReplaced) {
  EXPECT_EQ(Escaped("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(Escaped("é☂😀\n\t"), "é☂😀\n\t");
  const std::string no_letter = "\xef\xbf\xbd";
  EXPECT_EQ(Escaped(std::string("a\0b", 3)), "a" + no_letter + "b");
  EXPECT_EQ(Escaped("\x1b[0m"), no_letter + "[0m");
  EXPECT_EQ(Escaped("\xff"), no_letter);
  EXPECT_EQ(Escaped("\xe2\x98"), no_letter + no_letter);            // cut off
  EXPECT_EQ(Escaped("\xc0\xbc"), no_letter + no_letter);            // "<", longer than need be
  EXPECT_EQ(Escaped("\xed\xa0\x80").size(), 3 * no_letter.size());  // half of a pair
  EXPECT_EQ(Escaped("\xef\xbf\xbf").size(), 3 * no_letter.size());  // none at all
}

TEST(ReportTest, LettersAreNotCutInTwo) {
  EXPECT_EQ(Shortened("abc", 3), "abc");
  EXPECT_EQ(Shortened("abcd", 3), "ab…");
  EXPECT_EQ(Shortened("ééé", 3), "ééé");
  EXPECT_EQ(Shortened("éééé", 3), "éé…");
  EXPECT_EQ(Shortened("", 3), "");
}

TEST(ReportTest, TheCommandToRepeatIsQuoted) {
  EXPECT_EQ(RepeatCommand(EventfulRun()),
            "muster-chaos run drill --seed 18446744073709551557 -- build/dev/bin/char-lm --text "
            "'it'\\''s here.txt'");
}

TEST(ReportTest, JsonHasWhatAutomationNeeds) {
  const auto json = nlohmann::json::parse(JsonReport(EventfulRun(), SomeFindings(true)));
  EXPECT_FALSE(json["ok"].get<bool>());
  EXPECT_EQ(json["scenario"], "drill");
  EXPECT_EQ(json["seed"].get<std::uint64_t>(), 18'446'744'073'709'551'557U);
  EXPECT_THAT(json["repeat"].get<std::string>(), StartsWith("muster-chaos run drill --seed"));
  EXPECT_EQ(json["findings"].size(), 4U);
  EXPECT_EQ(json["findings"][1]["promise"], "S3");
  EXPECT_FALSE(json["findings"][1]["ok"].get<bool>());
  EXPECT_TRUE(json["findings"][2]["skipped"].get<bool>());
  ASSERT_EQ(json["injections"].size(), 5U);
  EXPECT_EQ(json["injections"][4]["failure"], "no checkpoint counts yet");
  EXPECT_EQ(json["left_out"].size(), 1U);
  EXPECT_EQ(json["incidents"].size(), 5U);
  EXPECT_EQ(json["incidents"][0]["phases_ms"]["restore"], 410);
  // A step takes 100 ms, and a re-form 1140 ms before the next step is committed.
  ASSERT_EQ(json["recovery_ms"].size(), 5U);
  EXPECT_NEAR(json["recovery_ms"][0].get<double>(), 1140, 0.01);
  EXPECT_TRUE(json["recovery_ms"][4].is_null());
  EXPECT_EQ(json["processes"][0]["most_threads"], 11);
  EXPECT_TRUE(nlohmann::json::parse(JsonReport(EventfulRun(), SomeFindings(false)))["ok"]);
}

TEST(ReportTest, JunitHasACaseForEachFinding) {
  const std::string xml = JunitReport(HostileRun(), SomeFindings(true));
  EXPECT_EQ(Count(xml, "<testcase "), 4U);
  EXPECT_EQ(Count(xml, "<failure "), 1U);
  EXPECT_EQ(Count(xml, "<skipped "), 1U);
  EXPECT_THAT(xml, HasSubstr("tests=\"4\" failures=\"1\" skipped=\"1\""));
  EXPECT_THAT(xml, Not(HasSubstr("<script>")));
  EXPECT_THAT(xml, Not(HasSubstr("\x01")));
  EXPECT_THAT(xml, Not(HasSubstr("\xff")));
}

TEST(ReportTest, ThePageSaysHowItEndedAndEscapesWhatItIsGiven) {
  EXPECT_THAT(HtmlReport(EventfulRun(), SomeFindings(false)), HasSubstr("✓ held"));
  EXPECT_THAT(HtmlReport(EventfulRun(), SomeFindings(true)), HasSubstr("BROKEN"));
  EXPECT_THAT(HtmlReport(EmptyRun(), {}), HasSubstr("Nothing was judged"));
  const std::string page = HtmlReport(HostileRun(), SomeFindings(true));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("\x01")));
  EXPECT_THAT(page, Not(HasSubstr("\xff")));
}

// 84 000 records, 300 generations: a page that a browser opens at once.
TEST(ReportTest, ALongRunHasNoGiantPage) {
  EXPECT_LT(HtmlReport(HostileRun(), SomeFindings(true)).size(), 1'500'000U);
}

TEST(ReportTest, AllThreeFilesAreWrittenWhole) {
  const Directory directory;
  const std::string below = directory.path() + "/a/b";
  const Evidence evidence = EventfulRun();
  ASSERT_TRUE(WriteReport(below, evidence, SomeFindings(false)).ok());
  ASSERT_TRUE(WriteReport(below, evidence, SomeFindings(true)).ok());  // over the first ones
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(below)) {
    ++files;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const std::string name = entry.path().filename();
    EXPECT_EQ(text, name == "report.html"   ? HtmlReport(evidence, SomeFindings(true))
                    : name == "report.json" ? JsonReport(evidence, SomeFindings(true))
                                            : JunitReport(evidence, SomeFindings(true)))
        << name;
  }
  EXPECT_EQ(files, 3U);
}

TEST(ReportTest, AFileThatCannotBeWrittenIsNamed) {
  const Directory directory;
  std::filesystem::create_directories(directory.path() + "/report.json/in-the-way");
  const Status status = WriteReport(directory.path(), EventfulRun(), SomeFindings(true));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr(directory.path() + "/report.json"));
  EXPECT_FALSE(std::filesystem::exists(directory.path() + "/report.json.new"));
  std::ofstream(directory.path() + "/file") << "x";
  const Status below = WriteReport(directory.path() + "/file/a", EventfulRun(), {});
  ASSERT_FALSE(below.ok());
  EXPECT_THAT(below.message(), HasSubstr("/file/a"));
}

}  // namespace
}  // namespace muster::chaos
