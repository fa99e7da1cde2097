#include "worker/collective/flight_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

namespace muster {
namespace {

class FlightFileTest : public ::testing::Test {
 protected:
  FlightFileTest() {
    std::string pattern = ::testing::TempDir() + "muster-flights-XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
  }
  ~FlightFileTest() override { std::filesystem::remove_all(directory_); }

  static FlightIdentity Self(const std::string& worker = "n1-0") {
    return ThisProcess(JobName("lm"), WorkerId(worker));
  }
  // A ring that a dead process left: one with this process's number, which began at another time.
  // The later it is made, the newer it is. Returns its path.
  std::string LeaveDead(const std::string& worker, std::int64_t tag) {
    FlightIdentity dead = Self(worker);
    dead.start_ticks += 1;
    std::string path = directory_ + "/" + worker + "-" + std::to_string(tag) + ".flight";
    EXPECT_TRUE(FlightRing::Create(path, dead).ok());
    return path;
  }
  std::set<std::string> Names() {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      names.insert(entry.path().filename());
    }
    return names;
  }

  std::string directory_;
};

TEST_F(FlightFileTest, LivesFromOpenToRemove) {
  FlightFile file;
  const std::string below = directory_ + "/new";
  ASSERT_TRUE(file.Open(below, Self()).ok());
  EXPECT_EQ(file.ring().path(), below + "/lm-n1-0-" + std::to_string(::getpid()) + ".flight");
  EXPECT_EQ(std::filesystem::status(below).permissions(), std::filesystem::perms::owner_all);
  const auto folder = ReadFlights(below);
  ASSERT_TRUE(folder.ok());
  ASSERT_EQ(folder->flights.size(), 1U);
  EXPECT_EQ(folder->flights[0].liveness, Liveness::kAlive);
  EXPECT_EQ(folder->flights[0].log.identity, Self());
  file.Remove();
  EXPECT_TRUE(std::filesystem::is_empty(below));
  file.Remove();
}

TEST_F(FlightFileTest, NamesAreDistinctAndFitToBeFiles) {
  std::set<std::string> names;
  for (const std::string& worker :
       {std::string("a"), std::string("a/b"), std::string("a b"), std::string("a_b"),
        std::string("../../etc"), std::string(".hidden"), std::string(128, 'x'),
        std::string(127, 'x') + "y", std::string("\n\x01")}) {
    FlightIdentity identity = Self(worker);
    identity.job = worker;
    const std::string name = FlightFileName(identity);
    EXPECT_LE(name.size(), 255U);
    EXPECT_FALSE(name.starts_with('.')) << name;
    EXPECT_EQ(name.find_first_of("/ \n\x01"), std::string::npos) << name;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
}

TEST_F(FlightFileTest, KeepsOfTheDeadOfItsNameTheNewestAndLeavesTheOthers) {
  LeaveDead("n1-0", 1);
  LeaveDead("n1-0", 2);
  const std::string newest = LeaveDead("n1-0", 3);
  LeaveDead("n1-1", 1);
  LeaveDead("n1-1", 2);
  FlightIdentity elsewhere = Self();
  elsewhere.pid_space += 2;
  ASSERT_TRUE(FlightRing::Create(directory_ + "/elsewhere.flight", elsewhere).ok());
  std::ofstream(directory_ + "/garbage.flight") << "garbage";
  std::ofstream(directory_ + "/other.txt") << "not ours";
  FlightFile file;
  ASSERT_TRUE(file.Open(directory_, Self()).ok());
  const std::set<std::string> expected = {"n1-0-3.flight",       "n1-1-1.flight",  "n1-1-2.flight",
                                          "elsewhere.flight",    "garbage.flight", "other.txt",
                                          FlightFileName(Self())};
  EXPECT_EQ(Names(), expected);
  const auto folder = ReadFlights(directory_);
  ASSERT_TRUE(folder.ok());
  EXPECT_EQ(folder->flights.size(), 5U);
  ASSERT_EQ(folder->unreadable.size(), 1U);
  EXPECT_NE(folder->unreadable[0].find("garbage.flight"), std::string::npos);
}

TEST_F(FlightFileTest, TheDeadOfADirectoryAreBoundedInNumber) {
  for (std::size_t i = 0; i < kMaxDeadFlights + 3; ++i) {
    LeaveDead("w" + std::to_string(i), 1);
  }
  FlightFile file;
  ASSERT_TRUE(file.Open(directory_, Self()).ok());
  const std::set<std::string> names = Names();
  EXPECT_EQ(names.size(), kMaxDeadFlights + 1);
  for (const char* oldest : {"w0-1.flight", "w1-1.flight", "w2-1.flight"}) {
    EXPECT_FALSE(names.contains(oldest)) << oldest;
  }
}

TEST_F(FlightFileTest, TakesThePlaceOfADeadProcessOfTheSameNumber) {
  FlightIdentity dead = Self();
  dead.start_ticks += 1;
  const std::string path = directory_ + "/" + FlightFileName(dead);
  ASSERT_TRUE(FlightRing::Create(path, dead).ok());
  FlightFile file;
  ASSERT_TRUE(file.Open(directory_, Self()).ok());
  EXPECT_EQ(ReadFlightRing(path)->identity, Self());
  FlightFile second;  // and never that of a live one
  EXPECT_EQ(second.Open(directory_, Self()).code(), Code::kAlreadyExists);
}

TEST_F(FlightFileTest, AKilledProcessIsDeadReapedOrNot) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    FlightFile file;
    const bool ok = file.Open(directory_, Self("killed")).ok();
    (void)!::write(ready[1], ok ? "y" : "n", 1);
    for (;;) ::pause();
  }
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  ::close(ready[0]);
  ::close(ready[1]);
  const auto liveness = [&] {
    const auto folder = ReadFlights(directory_);
    return folder.ok() && folder->flights.size() == 1 ? folder->flights[0].liveness
                                                      : Liveness::kUnknown;
  };
  EXPECT_EQ(liveness(), Liveness::kAlive);
  ::kill(child, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(liveness(), Liveness::kDead);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(liveness(), Liveness::kDead);
}

TEST_F(FlightFileTest, ADirectoryThatCannotBeIsAnErrorAndNoRing) {
  FlightFile file;
  EXPECT_EQ(file.Open(directory_ + "/no/such", Self()).code(), Code::kNotFound);
  std::ofstream(directory_ + "/plain") << "a file";
  EXPECT_FALSE(file.Open(directory_ + "/plain", Self()).ok());
  EXPECT_FALSE(file.ring().active());
  EXPECT_EQ(ReadFlights(directory_ + "/no").status().code(), Code::kNotFound);
}

}  // namespace
}  // namespace muster
