// The `muster run` command as its user has it: the real program, with shell scripts for workers.
#include "worker/cli/launcher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <regex>

#include "protocol/codec.h"
#include "tests/protocol/transport/server_fixture.h"

namespace muster::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Bounds how long a test that fails can take; nothing waits for it to pass.
constexpr int kLimitMs = 60'000;

bool Readable(int fd) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&entry, 1, kLimitMs) == 1;
}

// One `muster run` and what it prints.
class Muster {
 public:
  Muster(const std::vector<std::string>& flags, const std::string& script) {
    ProgramSpec spec;
    spec.arguments = {MUSTER_CLI, "run", "--job", "lm", "--node", "n1"};
    spec.arguments.insert(spec.arguments.end(), flags.begin(), flags.end());
    spec.arguments.insert(spec.arguments.end(), {"--", "sh", "-c", script});
    Start(spec);
  }
  explicit Muster(const std::vector<std::string>& arguments) {
    ProgramSpec spec;
    spec.arguments = {MUSTER_CLI};
    spec.arguments.insert(spec.arguments.end(), arguments.begin(), arguments.end());
    Start(spec);
  }

  // Reads stderr until it holds `text`.
  [[nodiscard]] bool Says(const std::string& text) {
    return Reads(process_->errors(), &errors_, text);
  }
  [[nodiscard]] bool Prints(const std::string& text) {
    return Reads(process_->output(), &output_, text);
  }

  // Waits for its end with both streams read; its exit as a shell reports it.
  int Wait() {
    (void)Reads(process_->output(), &output_, std::nullopt);
    (void)Reads(process_->errors(), &errors_, std::nullopt);
    EXPECT_TRUE(Readable(process_->pidfd()));
    const int code = process_->AwaitEnd().ShellCode();
    process_->Reap();
    return code;
  }

  // From the line that says that it was started the last time.
  int PidOf(const std::string& worker) {
    const std::string line = "started worker " + worker + " (pid ";
    EXPECT_TRUE(Says(line));
    const std::size_t at = errors_.rfind(line);
    return at == std::string::npos ? -1 : std::atoi(errors_.c_str() + at + line.size());
  }

  [[nodiscard]] const ChildProcess& process() const { return *process_; }
  [[nodiscard]] const std::string& output() const { return output_; }
  [[nodiscard]] const std::string& errors() const { return errors_; }

 private:
  void Start(const ProgramSpec& spec) {
    auto started = ChildProcess::Start(spec);
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    process_.emplace(std::move(*started));
  }

  static bool Reads(const FileDescriptor& from, std::string* into,
                    const std::optional<std::string>& until) {
    std::array<char, 65536> buffer;
    while (!until.has_value() || into->find(*until) == std::string::npos) {
      if (!Readable(from.get())) return false;
      const ssize_t got = read(from.get(), buffer.data(), buffer.size());
      if (got <= 0) return !until.has_value();
      into->append(buffer.data(), static_cast<std::size_t>(got));
    }
    return true;
  }

  std::optional<ChildProcess> process_;
  std::string output_;
  std::string errors_;
};

class LauncherTest : public TransportTest {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/launcher-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // Flags for `workers` workers and a coordinator that nobody answers for.
  static std::vector<std::string> Flags(int workers, const std::vector<std::string>& more = {}) {
    std::vector<std::string> flags = {
        "-n", std::to_string(workers), "--coordinator", "http://127.0.0.1:1", "--restart-pause",
        "1ms"};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  // A pipe by name: `read x < path` in a worker waits for Release(path).
  std::string Gate(const std::string& name) const {
    const std::string path = directory_ + "/" + name;
    EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
    return path;
  }
  static void Release(const std::string& gate) {
    const FileDescriptor fd(open(gate.c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_TRUE(fd.open());
    EXPECT_EQ(write(fd.get(), "go\n", 3), 3);
  }

  static bool Gone(int pid) {
    const FileDescriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    return pidfd.open() ? Readable(pidfd.get()) : errno == ESRCH;
  }

  std::string directory_;
};

TEST_F(LauncherTest, WorkersKnowWhoTheyAreAndTheirLinesAreMarked) {
  Muster muster(Flags(2),
                "echo $MUSTER_JOB $MUSTER_COORDINATOR $MUSTER_NODE $MUSTER_WORKER $LOCAL_RANK of "
                "$LOCAL_WORLD_SIZE; printf unfinished >&2");
  EXPECT_EQ(muster.Wait(), 0);
  for (const char* rank : {"0", "1"}) {
    const std::string name = std::string("n1-") + rank;
    EXPECT_THAT(muster.output(), HasSubstr("[" + name + "] lm http://127.0.0.1:1 n1 " + name + " " +
                                           rank + " of 2\n"));
    EXPECT_THAT(muster.errors(), HasSubstr("[" + name + "] unfinished\n"));
  }
}

TEST_F(LauncherTest, LongLinesOfManyWorkersAreNotTorn) {
  Muster muster(Flags(3),
                "for i in 1 2 3 4 5; do head -c 50000 /dev/zero | tr '\\0' "
                "$LOCAL_RANK; echo; done");
  EXPECT_EQ(muster.Wait(), 0);
  std::istringstream lines(muster.output());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    ASSERT_EQ(line.size(), 7U + 50'000U);
    EXPECT_EQ(line.substr(0, 4), "[n1-");
    EXPECT_EQ(line.find_first_not_of(line[4], 7), std::string::npos);
  }
  EXPECT_EQ(count, 15);
}

TEST_F(LauncherTest, AFailedWorkerIsStartedAgain) {
  Muster muster(Flags(2), "test $LOCAL_RANK = 0 && exit 0; mkdir " + directory_ +
                              "/seen 2>/dev/null && kill -9 $$; echo second life");
  EXPECT_EQ(muster.Wait(), 0);
  EXPECT_EQ(muster.output(), "[n1-1] second life\n");
  EXPECT_THAT(muster.errors(), HasSubstr("killed by signal 9 (SIGKILL); starting it again"));
}

TEST_F(LauncherTest, ASpentBudgetLeavesTheOthersAloneAndGivesTheExitCode) {
  const std::string gate = Gate("gate");
  Muster muster(Flags(2, {"--max-restarts", "2"}),
                "test $LOCAL_RANK = 1 && exit 3; read x < " + gate + "; echo went on");
  ASSERT_TRUE(muster.Says("stays down"));
  EXPECT_THAT(muster.errors(), HasSubstr("failure 3 within 300 s"));
  ASSERT_EQ(kill(muster.PidOf("n1-0"), 0), 0) << "the other one still runs";
  Release(gate);
  EXPECT_EQ(muster.Wait(), 3);
  EXPECT_EQ(muster.output(), "[n1-0] went on\n");
}

TEST_F(LauncherTest, SigtermIsHandedDownAndAnOrderlyEndIsSuccess) {
  Muster muster(Flags(2), "trap 'echo leaving; exit 0' TERM; echo ready; while :; do read x < " +
                              Gate("never") + "; done");
  ASSERT_TRUE(muster.Prints("[n1-0] ready"));
  ASSERT_TRUE(muster.Prints("[n1-1] ready"));
  muster.process().Signal(SIGTERM);
  EXPECT_EQ(muster.Wait(), 0);
  EXPECT_THAT(muster.output(), AllOf(HasSubstr("[n1-0] leaving"), HasSubstr("[n1-1] leaving")));
}

TEST_F(LauncherTest, WorkersThatDoNotLeaveInTimeAreKilled) {
  Muster muster(Flags(1, {"--stop-timeout", "50ms"}),
                "trap '' TERM; echo ready; while :; do read x < " + Gate("never") + "; done");
  ASSERT_TRUE(muster.Prints("ready"));
  muster.process().Signal(SIGTERM);
  EXPECT_EQ(muster.Wait(), 137);
  EXPECT_THAT(muster.errors(), HasSubstr("did not leave within 50 ms"));
}

TEST_F(LauncherTest, ASecondSignalKillsAtOnce) {
  Muster muster(Flags(1, {"--stop-timeout", "1h"}),
                "trap '' INT TERM; echo ready; while :; do read x < " + Gate("never") + "; done");
  ASSERT_TRUE(muster.Prints("ready"));
  muster.process().Signal(SIGINT);
  ASSERT_TRUE(muster.Says("once more kills them"));
  muster.process().Signal(SIGTERM);
  EXPECT_EQ(muster.Wait(), 137);
}

TEST_F(LauncherTest, AKilledLauncherLeavesNoOrphan) {
  std::vector<int> pids;
  {
    Muster muster(Flags(2), "echo ready; read x < " + Gate("never"));
    for (const char* worker : {"n1-0", "n1-1"}) {
      ASSERT_TRUE(muster.Prints(std::string("[") + worker + "] ready"));
      pids.push_back(muster.PidOf(worker));
      ASSERT_EQ(kill(pids.back(), 0), 0);
    }
    muster.process().Signal(SIGKILL);
    ASSERT_TRUE(Readable(muster.process().pidfd()));
  }
  for (const int pid : pids) EXPECT_TRUE(Gone(pid)) << pid;
}

TEST_F(LauncherTest, HelpersOfADeadWorkerDieWithIt) {
  const std::string gate = Gate("gate");
  Muster muster(Flags(1, {"--max-restarts", "0"}),
                "sleep 1000 & echo helper $!; read x < " + gate + "; exit 4");
  ASSERT_TRUE(muster.Prints("helper "));
  ASSERT_TRUE(muster.Prints("\n"));
  const int helper = std::atoi(muster.output().c_str() + muster.output().find("helper ") + 7);
  ASSERT_EQ(kill(helper, 0), 0);
  Release(gate);
  EXPECT_EQ(muster.Wait(), 4);
  EXPECT_TRUE(Gone(helper));
}

TEST_F(LauncherTest, AProgramThatCannotStartIsSaidOnce) {
  Muster muster({"run", "--job", "lm", "--node", "n1", "-n", "3", "--coordinator",
                 "http://127.0.0.1:1", "--", "/no/such/program"});
  EXPECT_EQ(muster.Wait(), 127);
  EXPECT_THAT(muster.errors(), HasSubstr("/no/such/program: No such file"));
  EXPECT_THAT(muster.errors(), Not(HasSubstr("started")));
}

TEST_F(LauncherTest, BadFlagsAreNamed) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"run", "--coordinator", "http://h:1", "--", "true"}, "--job"},
      {{"run", "--job", "x", "--", "true"}, "--coordinator"},
      {{"run", "--job", "x", "--coordinator", "ftp://h", "--", "true"}, "ftp://h"},
      {{"run", "--job", "x", "--coordinator", "http://h:1"}, "program"},
      {{"run", "--job", "x", "--coordinator", "http://h:1", "--restart-pause", "40s", "--", "true"},
       "--restart-pause"},
      {{"status", "--coordinator", "http://127.0.0.1:1"}, "http://127.0.0.1:1"},
      {{"events"}, "muster events JOB"},
  };
  unsetenv("MUSTER_JOB");
  unsetenv("MUSTER_COORDINATOR");
  for (const auto& [arguments, named] : cases) {
    Muster muster(arguments);
    EXPECT_EQ(muster.Wait(), 1) << named;
    EXPECT_THAT(muster.errors(), HasSubstr(named));
    EXPECT_EQ(std::count(muster.errors().begin(), muster.errors().end(), '\n'), 1)
        << muster.errors();
  }
}

// A reader that has stopped reading must not keep the launcher from seeing a death.
TEST_F(LauncherTest, DeathsAreReportedWhileItsOutputIsStuck) {
  const std::string gate = Gate("gate");
  Muster muster({"-n", "2", "--coordinator", url(), "--max-restarts", "0"},
                "test $LOCAL_RANK = 0 && exec yes; read x < " + gate + "; kill -9 $$");
  ServeOneChannel();
  ASSERT_TRUE(RunUntil([this] { return server_ != nullptr; }));
  Collect(server_, at_server_);
  Release(gate);
  std::optional<Attest> death;
  ASSERT_TRUE(RunUntil([&] {
    for (const std::string& text : at_server_.texts) {
      const Result<Message> message = Decode(text);
      const auto* attest = message.ok() ? std::get_if<Attest>(&*message) : nullptr;
      if (attest != nullptr && !attest->alive) death = *attest;
    }
    return death.has_value();
  }));
  EXPECT_EQ(death->worker, WorkerId("n1-1"));
  EXPECT_EQ(death->pid, muster.PidOf("n1-1"));
  EXPECT_EQ(death->detail, "killed by signal 9 (SIGKILL)");
}

TEST_F(LauncherTest, TheEndOfTheJobCallsOffRestarts) {
  Muster muster({"-n", "1", "--coordinator", url(), "--restart-pause", "30s"}, "exit 1");
  ServeOneChannel();
  ASSERT_TRUE(muster.Says("starting it again in 30 s"));
  ASSERT_TRUE(RunUntil([this] { return server_ != nullptr; }));
  Collect(server_, at_server_);
  server_->Send(Encode(Ended{.end = {.kind = EndKind::kFinished, .step = Step(9), .reason = "x"}}));
  ASSERT_TRUE(RunUntil([this] { return at_server_.closed == 1; }));
  EXPECT_EQ(muster.Wait(), 0);
}

}  // namespace
}  // namespace muster::cli
