// Holds the tree to its own rules. Each rule is first shown to find a planted violation, since a
// rule that finds nothing proves nothing.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/tidy/checks.h"
#include "tests/tidy/source.h"

namespace muster::tidy {
namespace {

namespace fs = std::filesystem;

bool IsSkipped(const fs::directory_entry& entry, const fs::path& root) {
  const std::string name = entry.path().filename().string();
  if (name == "__pycache__") return true;
  const bool top = entry.path().parent_path() == root;
  return top && entry.is_directory() && (name == "build" || (name[0] == '.' && name != ".ci"));
}

bool IsText(const std::string& path) {
  for (const char* ending :
       {".cc", ".h", ".md", ".txt", ".json", ".py", ".sh", "run", ".clang-format", ".clang-tidy"}) {
    if (path.ends_with(ending)) return true;
  }
  return false;
}

Tree ReadTree(const fs::path& root) {
  Tree tree;
  for (auto it = fs::recursive_directory_iterator(root); it != fs::recursive_directory_iterator();
       ++it) {
    if (IsSkipped(*it, root)) {
      it.disable_recursion_pending();
      continue;
    }
    const std::string path = it->path().lexically_relative(root).generic_string();
    if (!it->is_regular_file() || !IsText(path)) continue;
    std::ifstream file(it->path(), std::ios::binary);
    tree[path] = std::string(std::istreambuf_iterator<char>(file), {});
  }
  return tree;
}

std::string Lines(int count, const std::string& line) {
  std::string text;
  for (int i = 0; i < count; ++i) text += line + "\n";
  return text;
}

std::string FunctionOf(int lines) { return "void F() {\n" + Lines(lines - 2, "  G();") + "}\n"; }

TEST(TidyTree, KeepsItsRules) {
  const Tree tree = ReadTree(MUSTER_SOURCE_DIR);
  ASSERT_TRUE(tree.contains("protocol/box.cc")) << "read the wrong folder: " MUSTER_SOURCE_DIR;
  std::string report;
  for (const Finding& finding : CheckTree(tree)) report += finding.ToString() + "\n";
  EXPECT_TRUE(report.empty()) << report;
}

TEST(TidyLayering, ProjectIncludes) {
  const auto count = [](const std::string& path, const std::string& target) {
    return CheckLayering(path, "#include \"" + target + "\"\n").size();
  };
  EXPECT_EQ(count("protocol/box.cc", "protocol/check.h"), 0U);
  EXPECT_EQ(count("protocol/box.cc", "coordinator/core/input.h"), 1U);
  EXPECT_EQ(count("protocol/box.cc", "protocol/transport/net.h"), 1U);
  EXPECT_EQ(count("protocol/transport/channel.cc", "protocol/status.h"), 0U);
  EXPECT_EQ(count("coordinator/core/membership.cc", "coordinator/store/journal.h"), 1U);
  EXPECT_EQ(count("worker/core/session.cc", "coordinator/core/input.h"), 1U);
  EXPECT_EQ(count("worker/client/worker.cc", "worker/core/session.h"), 0U);
  EXPECT_EQ(count("worker/client/worker.cc", "coordinator/store/journal.h"), 1U);
  EXPECT_EQ(count("worker/examples/char_lm.cc", "worker/client/worker.h"), 0U);
  EXPECT_EQ(count("worker/examples/char_lm.cc", "worker/collective/communicator.h"), 1U);
  EXPECT_EQ(count("worker/examples/char_lm.cc", "worker/collective/device.h"), 0U);
  EXPECT_EQ(count("chaos/sim/simulator.cc", "worker/core/session.h"), 0U);
  EXPECT_EQ(count("chaos/sim/simulator.cc", "coordinator/server/driver.h"), 1U);
  EXPECT_EQ(count("checkpoint/writer.cc", "coordinator/store/journal.h"), 1U);
  EXPECT_EQ(count("tests/e2e/kill_test.cc", "coordinator/server/driver.h"), 0U);
}

TEST(TidyLayering, Libraries) {
  const auto count = [](const std::string& path, const std::string& target) {
    return CheckLayering(path, "#include <" + target + ">\n").size();
  };
  EXPECT_EQ(count("protocol/codec.cc", "nlohmann/json.hpp"), 0U);
  EXPECT_EQ(count("protocol/box.cc", "nlohmann/json.hpp"), 1U);
  EXPECT_EQ(count("protocol/box.cc", "fmt/format.h"), 0U);
  EXPECT_EQ(count("protocol/transport/net.h", "boost/asio.hpp"), 0U);
  EXPECT_EQ(count("worker/collective/tcp_communicator.cc", "boost/asio.hpp"), 1U);
  EXPECT_EQ(count("worker/collective/tcp_communicator.cc", "sys/socket.h"), 0U);
  EXPECT_EQ(count("coordinator/store/journal.cc", "rocksdb/db.h"), 0U);
  EXPECT_EQ(count("worker/client/runner.cc", "rocksdb/db.h"), 1U);
  EXPECT_EQ(count("checkpoint/writer.cc", "xxhash.h"), 0U);
  EXPECT_EQ(count("worker/core/session.cc", "xxhash.h"), 1U);
  EXPECT_EQ(count("chaos/sim/fingerprint.h", "boost/pfr.hpp"), 0U);
  EXPECT_EQ(count("chaos/sim/fingerprint.h", "boost/asio.hpp"), 1U);
  EXPECT_EQ(count("worker/core/session.cc", "boost/pfr.hpp"), 1U);
  EXPECT_EQ(count("worker/cli/run.cc", "CLI/CLI.hpp"), 1U);
  EXPECT_EQ(count("worker/cli/main.cc", "CLI/CLI.hpp"), 0U);
}

TEST(TidyLayering, PureLayers) {
  for (const char* header : {"thread", "chrono", "mutex", "random", "fstream", "sys/socket.h",
                             "unistd.h", "time.h", "ctime", "cstdio"}) {
    const std::string text = "#include <" + std::string(header) + ">\n";
    EXPECT_EQ(CheckLayering("coordinator/core/quorum.cc", text).size(), 1U) << header;
    EXPECT_EQ(CheckLayering("chaos/sim/network.cc", text).size(), 1U) << header;
    EXPECT_EQ(CheckLayering("coordinator/server/driver.cc", text).size(), 0U) << header;
  }
  EXPECT_TRUE(CheckLayering("protocol/check.cc", "#include <cstdio>\n").empty());
  for (const char* code :
       {"auto t = std::chrono::steady_clock::now();", "clock_gettime(CLOCK_MONOTONIC, &t);",
        "auto t = ::time(nullptr);", "time(NULL);", "int r = rand();", "getenv(\"HOME\");"}) {
    EXPECT_FALSE(CheckLayering("worker/core/session.cc", code).empty()) << code;
    EXPECT_TRUE(CheckLayering("worker/client/runner.cc", code).empty()) << code;
  }
  for (const char* code : {"// std::chrono is not used here", "const char* s = \"rand()\";",
                           "Duration lifetime(int x);", "auto x = operand(3);"}) {
    EXPECT_TRUE(CheckLayering("worker/core/session.cc", code).empty()) << code;
  }
}

TEST(TidyLayering, PublicHeadersAlsoThroughOthers) {
  Tree tree = {{"worker/client/worker.h", "#include \"worker/client/step.h\"\n"},
               {"worker/client/step.h", "#include \"protocol/transport/net.h\"\n"},
               {"protocol/transport/net.h", "#include <boost/asio.hpp>\n"}};
  ASSERT_EQ(CheckPublicHeaders(tree).size(), 2U);  // worker.h and step.h both reach it
  EXPECT_EQ(CheckPublicHeaders(tree)[0].path, "protocol/transport/net.h");
  tree["worker/client/step.h"] = "#include <vector>\n";
  EXPECT_TRUE(CheckPublicHeaders(tree).empty());
}

TEST(TidySizes, FilesAndColumns) {
  EXPECT_TRUE(CheckSizes("a.cc", Lines(500, "int x;")).empty());
  EXPECT_EQ(CheckSizes("a.cc", Lines(501, "int x;")).size(), 1U);
  EXPECT_TRUE(CheckSizes("a.cc", "// " + std::string(97, 'x')).empty());
  EXPECT_EQ(CheckSizes("a.cc", "int x;\n// " + std::string(98, 'x')),
            (Findings{{"a.cc", 2, "wider than 100 columns"}}));
  std::string wide;
  for (int i = 0; i < 97; ++i) wide += "…";
  EXPECT_TRUE(CheckSizes("a.cc", "// " + wide).empty());
}

TEST(TidySizes, Functions) {
  EXPECT_TRUE(CheckSizes("a.cc", FunctionOf(70)).empty());
  const Findings findings = CheckSizes("a.cc", "int before;\n" + FunctionOf(71));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].line, 2);
  EXPECT_EQ(CheckSizes("a.h", "class A {\n public:\n" + FunctionOf(71) + "};\n").size(), 1U);
  EXPECT_EQ(CheckSizes("a.cc", "TEST(A, B) {\n" + Lines(70, "  G();") + "}\n").size(), 1U);
  EXPECT_TRUE(CheckSizes("a.h", "struct A {\n" + Lines(90, "  int x;") + "};\n").empty());
  EXPECT_TRUE(CheckSizes("a.cc", "const int k[] = {\n" + Lines(90, "    1,") + "};\n").empty());
  EXPECT_TRUE(CheckSizes("a.cc", FunctionOf(60) + FunctionOf(60)).empty());
}

TEST(TidySource, FindsFunctionsInEveryShape) {
  const std::string text =
      "namespace a {\n"
      "template <class T>\n"
      "T Twice(T x) {\n"
      "  if (x) { return x; }\n"
      "  return x + x;\n"
      "}\n"
      "class B : public C {\n"
      "  B() : c_{1}, d_(\"}\") {\n"
      "    auto f = [] { return '{'; };\n"
      "  }\n"
      "  int c_{0};\n"
      "  B& operator=(const B& b) = default;\n"
      "  bool ok() const { return n > 1'000; }\n"
      "};\n"
      "}  // namespace a\n";
  const std::vector<Function> functions = FunctionsOf(BlankNonCode(text));
  ASSERT_EQ(functions.size(), 3U);
  EXPECT_EQ(functions[0].first_line, 2);
  EXPECT_EQ(functions[0].last_line, 6);
  EXPECT_EQ(functions[1].first_line, 8);
  EXPECT_EQ(functions[1].last_line, 10);
  EXPECT_EQ(functions[2].lines(), 1);
}

TEST(TidyVisitState, ListsEveryMember) {
  const auto header = [](const std::string& visited) {
    return "class A {\n public:\n  int x() const { return x_; }\n  template <class Visit>\n"
           "  void VisitState(Visit&& visit) const {\n    visit(" +
           visited +
           ");\n  }\n\n private:\n  int x_ = 0;  // a number\n"
           "  std::map<int, B> all_things_;\n  C* const c_{nullptr};\n};\n";
  };
  EXPECT_TRUE(CheckVisitState("a/b.h", header("x_, all_things_,\n          c_")).empty());
  const Findings findings = CheckVisitState("a/b.h", header("x_, c_"));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].ToString(), "a/b.h:11: all_things_ is missing in VisitState");
  EXPECT_EQ(CheckVisitState("a/b.h", header("")).size(), 3U);
  EXPECT_TRUE(CheckVisitState("a/b.h", "class A {\n private:\n  int x_ = 0;\n};\n").empty());
  // What is left out on purpose has to be there, and not visited as well.
  const std::string path = "coordinator/core/checkpoint_tracker.h";
  EXPECT_EQ(CheckVisitState(path, header("x_, all_things_, c_")).size(), 1U);
}

TEST(TidySource, BlanksWhatIsNoCode) {
  EXPECT_EQ(BlankNonCode("a // b\nc"), "a     \nc");
  EXPECT_EQ(BlankNonCode("a /* b\nc */ d"), "a     \n     d");
  EXPECT_EQ(BlankNonCode("f(\"x\\\"y\", '\\'')"), "f(      ,     )");
  EXPECT_EQ(BlankNonCode("x = R\"j({\")j\";"), "x = R        ;");
  EXPECT_EQ(BlankNonCode("#define A \\\n  {\nb"), "           \n   \nb");
  EXPECT_EQ(BlankNonCode("1'000 + 2'000"), "1'000 + 2'000");
}

TEST(TidyLeftovers, WordsOfUnfinishedWork) {
  EXPECT_EQ(CheckLeftovers("a.md",
                           "so\n// TO"
                           "DO: later")
                .size(),
            1U);
  EXPECT_EQ(CheckLeftovers("a.cc",
                           "// FIX"
                           "ME")
                .size(),
            1U);
  EXPECT_EQ(CheckLeftovers("a.cc",
                           "// XX"
                           "X why")
                .size(),
            1U);
  EXPECT_TRUE(CheckLeftovers("a.cc", "mkdtemp(\"/tmp/a-XXXXXX\"); // mastodon").empty());
}

TEST(TidySleeps, InTestsAndChaosOnly) {
  for (const char* code : {"std::this_thread::sleep_for(1s);", "usleep(10);", "::sleep(1);",
                           "nanosleep(&t, nullptr);"}) {
    EXPECT_EQ(CheckSleeps("tests/e2e/a_test.cc", code).size(), 1U) << code;
    EXPECT_EQ(CheckSleeps("chaos/live/faults.cc", code).size(), 1U) << code;
    EXPECT_TRUE(CheckSleeps("worker/core/a.cc", code).empty()) << code;
  }
  EXPECT_TRUE(CheckSleeps("tests/a_test.cc", "// no sleep(1)\nint asleep(int);").empty());
}

TEST(TidyHeaders, PragmaOnce) {
  EXPECT_EQ(CheckPragmaOnce("a.h", "int x;\n").size(), 1U);
  EXPECT_TRUE(CheckPragmaOnce("a.h", "// A.\n#pragma once\nint x;\n").empty());
  EXPECT_TRUE(CheckPragmaOnce("a.cc", "int x;\n").empty());
}

TEST(TidyBuild, EverySourceIsListed) {
  Tree tree = {{"p/a.cc", ""}, {"p/b/c.cc", ""}, {"p/CMakeLists.txt", "add_library(p a.cc)\n"}};
  ASSERT_EQ(CheckListed(tree).size(), 1U);
  EXPECT_EQ(CheckListed(tree)[0].path, "p/b/c.cc");
  tree["p/CMakeLists.txt"] += "# c.cc b/c.cc\n";
  EXPECT_EQ(CheckListed(tree).size(), 1U) << "a comment builds nothing";
  tree["p/b/CMakeLists.txt"] = "target_sources(p PRIVATE\n  cc.cc)";
  EXPECT_EQ(CheckListed(tree).size(), 1U) << "another name that ends the same way";
  tree["p/CMakeLists.txt"] += "target_sources(p PRIVATE\n  b/c.cc)";
  EXPECT_TRUE(CheckListed(tree).empty());
}

TEST(TidyTree, TopLevelFolders) {
  EXPECT_TRUE(CheckTopLevel({{"run", ""}, {"protocol/a.h", ""}, {".ci/run", ""}}).empty());
  EXPECT_EQ(CheckTopLevel({{"util/a.h", ""}}).size(), 1U);
}

TEST(TidyDocumentation, EveryMessageIsInTheTable) {
  Tree tree = {{"protocol/messages.h", "using Message =\n    std::variant<Hello,\n  FormFailed>;"},
               {"protocol/README.md", "| `hello` |\n"}};
  ASSERT_EQ(CheckMessageTable(tree).size(), 1U);
  EXPECT_EQ(CheckMessageTable(tree)[0].message, "does not name `form_failed`");
  tree["protocol/README.md"] += "| `form_failed` |";
  EXPECT_TRUE(CheckMessageTable(tree).empty());
  tree.erase("protocol/README.md");
  EXPECT_EQ(CheckMessageTable(tree).size(), 1U);
}

}  // namespace
}  // namespace muster::tidy
