// With shell scripts in the place of musterd.
#include "worker/cli/standalone.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace muster::cli {
namespace {

using ::testing::HasSubstr;

class StandaloneTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/standalone-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    ASSERT_EQ(setenv("TMPDIR", directory_.c_str(), 1), 0);
    ASSERT_EQ(pipe2(signals_.data(), O_CLOEXEC), 0);
  }
  void TearDown() override {
    close(signals_[0]);
    close(signals_[1]);
    unsetenv("TMPDIR");
    std::filesystem::remove_all(directory_);
  }

  // A program that takes musterd's flags: $2 is where to listen, $4 the data directory, $6 the file
  // for the port.
  std::string Program(const std::string& script) const {
    std::string path = directory_ + "/program";
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  // One that listens, as far as can be seen, and ends on SIGTERM.
  std::string Listening() const {
    return Program("echo $2 >> " + directory_ + "/asked; echo $$ > " + directory_ +
                   "/pid; echo 127.0.0.1:4242 > $6.new && mv $6.new $6; exec sleep 1000");
  }
  auto Start(const std::string& program, const std::string& data = "") {
    return Standalone::Start(program, data, signals_[0]);
  }
  [[nodiscard]] std::string Asked() const {
    std::stringstream text;
    text << std::ifstream(directory_ + "/asked").rdbuf();
    return text.str();
  }

  [[nodiscard]] int ListeningPid() const {
    int pid = 0;
    std::ifstream(directory_ + "/pid") >> pid;
    return pid;
  }

  std::string directory_;
  std::array<int, 2> signals_{};
};

TEST_F(StandaloneTest, TellsWhereItListensAndCleansUp) {
  auto standalone = Start(Listening());
  ASSERT_TRUE(standalone.ok()) << standalone.status().ToString();
  EXPECT_EQ((*standalone)->url(), "http://127.0.0.1:4242");
  EXPECT_EQ(Asked(), "127.0.0.1:0\n");
  standalone->reset();
  // The program and what it was asked are all that is left.
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    left.push_back(entry.path().filename().string());
  }
  EXPECT_THAT(left, ::testing::UnorderedElementsAre("program", "asked", "pid"));
}

TEST_F(StandaloneTest, AGivenDirectoryIsKeptAndAnOldPortIsNotTakenForANewOne) {
  const std::string data = directory_ + "/new/data";
  std::filesystem::create_directories(data);
  std::ofstream(data + "/port") << "127.0.0.1:1\n";
  auto standalone = Start(Listening(), data);
  ASSERT_TRUE(standalone.ok()) << standalone.status().ToString();
  EXPECT_EQ((*standalone)->url(), "http://127.0.0.1:4242");
  standalone->reset();
  EXPECT_TRUE(std::filesystem::exists(data));
}

TEST_F(StandaloneTest, AMusterdThatEndsAtOnceIsReported) {
  const auto standalone = Start(Program("exit 2"));
  ASSERT_FALSE(standalone.ok());
  EXPECT_THAT(standalone.status().message(), HasSubstr("exited with code 2 before it listened"));
  EXPECT_EQ(Start(directory_ + "/absent").status().code(), Code::kNotFound);
}

TEST_F(StandaloneTest, ADirectoryThatCannotBeMadeIsNamed) {
  const std::string program = Listening();
  const auto standalone = Start(program, program + "/below");
  ASSERT_FALSE(standalone.ok());
  EXPECT_THAT(standalone.status().message(), HasSubstr(program + "/below"));
}

TEST_F(StandaloneTest, ASignalEndsTheWait) {
  ASSERT_EQ(write(signals_[1], "x", 1), 1);
  EXPECT_EQ(Start(Program("exec sleep 1000")).status().code(), Code::kInterrupted);
}

TEST_F(StandaloneTest, ComesBackOnTheSamePortUntilThatIsHopeless) {
  auto standalone = Start(Listening());
  ASSERT_TRUE(standalone.ok());
  (void)Program("echo $2 >> " + directory_ + "/asked; exit 3");  // in its place from now on
  for (int revival = 0;; ++revival) {
    ASSERT_LT(revival, 100);
    if (revival == 0) {
      ASSERT_EQ(kill(ListeningPid(), SIGKILL), 0);
    }
    pollfd entry{.fd = (*standalone)->pidfd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&entry, 1, 60'000), 1);
    const std::string said = (*standalone)->Revive();
    EXPECT_THAT(said, HasSubstr(revival == 0 ? "killed by signal 9 (SIGKILL)" : "with code 3"));
    if ((*standalone)->pidfd() < 0) {
      EXPECT_THAT(said, HasSubstr("stays down"));
      EXPECT_EQ(revival, 5);
      break;
    }
  }
  EXPECT_THAT(Asked(), HasSubstr("127.0.0.1:0\n127.0.0.1:4242\n"));
}

}  // namespace
}  // namespace muster::cli
