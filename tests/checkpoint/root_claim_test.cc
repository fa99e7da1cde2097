// One job at a time on a checkpoint root (S16): with locks that a test holds in its hand, and with
// those of real processes.
#include "checkpoint/root_claim.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

namespace muster::checkpoint {
namespace {

using Answer = RootClaim::Answer;
using Hold = OwnerFile::Hold;

constexpr Lineage kOne(0x1111);
constexpr Lineage kTwo(0x2222);

Instant At(std::int64_t seconds) { return Instant::FromNanos(0) + Duration::Seconds(seconds); }

// A file that several claims have open, each like a process of its own.
struct FakeInode {
  std::string content;
  std::map<const OwnerFile*, Hold> holds;
  Status lock_error;   // of all calls
  Status write_error;  // of all calls
  int writes = 0;

  [[nodiscard]] Result<std::unique_ptr<OwnerFile>> Open();
};

class FakeFile : public OwnerFile {
 public:
  explicit FakeFile(FakeInode* inode) : inode_(*inode) {}
  ~FakeFile() override { inode_.holds.erase(this); }
  FakeFile(const FakeFile&) = delete;
  FakeFile& operator=(const FakeFile&) = delete;

  Status Lock(Hold hold) override {
    if (!inode_.lock_error.ok()) return inode_.lock_error;
    for (const auto& [other, theirs] : inode_.holds) {
      if (other == this || theirs == Hold::kNone || hold == Hold::kNone) continue;
      if (hold == Hold::kExclusive || theirs == Hold::kExclusive) return Unavailable("locked");
    }
    inode_.holds[this] = hold;
    return {};
  }
  Result<std::string> Read() override { return inode_.content; }
  Status Replace(std::string_view text) override {
    if (!inode_.write_error.ok()) return inode_.write_error;
    inode_.content = text;
    ++inode_.writes;
    return {};
  }
  [[nodiscard]] int descriptor() const override { return -1; }

 private:
  FakeInode& inode_;
};

Result<std::unique_ptr<OwnerFile>> FakeInode::Open() {
  return std::unique_ptr<OwnerFile>(std::make_unique<FakeFile>(this));
}

class RootClaimTest : public testing::Test {
 protected:
  std::unique_ptr<RootClaim> Process(const std::string& job, std::int64_t pid) {
    RootOwner self;
    self.job = job;
    self.host = "host" + std::to_string(pid);
    self.pid = pid;
    return std::make_unique<RootClaim>("/root", self, [this] { return inode_.Open(); });
  }
  // What the file says.
  RootOwner Owner() {
    const std::optional<RootOwner> owner = DecodeOwner(inode_.content);
    EXPECT_TRUE(owner.has_value()) << inode_.content;
    return owner.value_or(RootOwner());
  }

  FakeInode inode_;
};

TEST_F(RootClaimTest, TheProcessesOfAJobShareTheRoot) {
  const auto a = Process("job", 1);
  const auto b = Process("job", 2);
  EXPECT_EQ(a->Claim(kOne, At(0)), Answer::kHeld);
  EXPECT_EQ(b->Claim(kOne, At(0)), Answer::kHeld);
  EXPECT_EQ(a->Claim(kOne, At(9)), Answer::kHeld);
  EXPECT_EQ(inode_.writes, 1);
  EXPECT_EQ(Owner().pid, 1);
  EXPECT_EQ(Owner().lineages, std::vector{kOne});
}

TEST_F(RootClaimTest, AnotherJobIsRefusedAsLongAsOneProcessLives) {
  auto a = Process("first", 1);
  auto b = Process("first", 2);
  ASSERT_EQ(a->Claim(kOne, At(0)), Answer::kHeld);
  ASSERT_EQ(b->Claim(kOne, At(0)), Answer::kHeld);
  a.reset();
  const auto other = Process("second", 3);
  EXPECT_EQ(other->Claim(kTwo, At(10)), Answer::kLater);
  EXPECT_EQ(other->Claim(kTwo, At(14)), Answer::kLater);
  EXPECT_EQ(other->Claim(kTwo, At(15)), Answer::kRefused);
  EXPECT_EQ(other->reason().code(), Code::kFailedPrecondition);
  const std::string& text = other->reason().message();
  for (const char* words : {"/root", "job first", "process 1 on host host1",
                            "choose another checkpoint directory", "end that job"}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << " in: " << text;
  }
  EXPECT_EQ(Owner().job, "first") << "nothing was changed";
  b.reset();
  EXPECT_EQ(other->Claim(kTwo, At(16)), Answer::kHeld);
  EXPECT_EQ(Owner().job, "second");
  EXPECT_EQ(Owner().lineages, std::vector{kTwo});
}

TEST_F(RootClaimTest, ThoseWhoTrainOnUnderANewLineageTakeItAlong) {
  const auto a = Process("job", 1);
  const auto b = Process("job", 2);
  ASSERT_EQ(a->Claim(kOne, At(0)), Answer::kHeld);
  ASSERT_EQ(b->Claim(kOne, At(0)), Answer::kHeld);
  const auto fresh = Process("job", 3);
  EXPECT_EQ(fresh->Claim(kTwo, At(0)), Answer::kLater) << "it sees the old one alone";
  EXPECT_EQ(a->Claim(kTwo, At(1)), Answer::kHeld);
  EXPECT_EQ(b->Claim(kTwo, At(1)), Answer::kHeld);
  EXPECT_EQ(fresh->Claim(kTwo, At(1)), Answer::kHeld);
  EXPECT_EQ(Owner().lineages, (std::vector{kOne, kTwo}));
  EXPECT_EQ(inode_.writes, 2);
  // Adopted again and again, the list does not grow for ever.
  for (std::uint64_t i = 0; i < 40; ++i) {
    ASSERT_EQ(a->Claim(Lineage(0x3000 + i), At(2)), Answer::kHeld);
  }
  EXPECT_EQ(Owner().lineages.size(), kMaxOwnerLineages);
  EXPECT_EQ(Owner().lineages.back(), Lineage(0x3000 + 39));
}

TEST_F(RootClaimTest, WhatIsTornBelongsToNobody) {
  const auto a = Process("job", 1);
  ASSERT_EQ(a->Claim(kOne, At(0)), Answer::kHeld);
  const std::string whole = inode_.content;
  for (std::size_t bytes = 0; bytes + 1 < whole.size(); ++bytes) {
    EXPECT_FALSE(DecodeOwner(whole.substr(0, bytes)).has_value()) << bytes;
  }
  std::string damaged = whole;
  damaged[damaged.find("\"job\":\"") + 7] = 'J';
  EXPECT_FALSE(DecodeOwner(damaged).has_value());

  inode_.content = whole.substr(0, whole.size() / 2);
  const auto other = Process("other", 2);
  EXPECT_EQ(other->Claim(kTwo, At(0)), Answer::kLater) << "its owner lives all the same";
  EXPECT_EQ(a->Claim(kTwo, At(0)), Answer::kHeld);
  EXPECT_EQ(Owner().lineages, (std::vector{kOne, kTwo})) << "and mends it";
}

TEST_F(RootClaimTest, OneThatIsJustBeingTakenIsWaitedFor) {
  FakeFile taker(&inode_);
  ASSERT_TRUE(taker.Lock(Hold::kExclusive).ok());
  const auto a = Process("job", 1);
  EXPECT_EQ(a->Claim(kOne, At(0)), Answer::kLater);
  RootOwner owner;
  owner.lineages = {kOne};
  inode_.content = EncodeOwner(owner);
  EXPECT_EQ(a->Claim(kOne, At(1)), Answer::kLater) << "not before it is done";
  ASSERT_TRUE(taker.Lock(Hold::kShared).ok());
  EXPECT_EQ(a->Claim(kOne, At(2)), Answer::kHeld);
}

TEST_F(RootClaimTest, WithoutLocksOrSpaceTrainingGoesOn) {
  const auto a = Process("job", 1);
  inode_.lock_error = Unimplemented("no locks available");
  EXPECT_EQ(a->Claim(kOne, At(0)), Answer::kUnprotected);
  EXPECT_NE(a->reason().message().find("no locks available"), std::string::npos);
  EXPECT_NE(a->reason().message().find("/root"), std::string::npos);

  inode_.lock_error = Status();
  inode_.write_error = Internal("no space left");
  EXPECT_EQ(a->Claim(kOne, At(0)), Answer::kUnprotected);
  EXPECT_TRUE(inode_.holds.empty()) << "a lock that says nothing would keep its own job out";

  RootClaim nowhere("/root", RootOwner(), [] {
    return Result<std::unique_ptr<OwnerFile>>(PermissionDenied("cannot open it"));
  });
  EXPECT_EQ(nowhere.Claim(kOne, At(0)), Answer::kUnprotected);
}

// A child process that claims `root` for the lineage, says how that went, and waits to be killed.
class Claimant {
 public:
  Claimant(const std::string& root, Lineage lineage) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe(ends), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      RootOwner self;
      self.job = "child";
      self.host = "here";
      self.pid = ::getpid();
      RootClaim claim(root, self, [&] { return OpenOwnerFile(root); });
      const char answer = claim.Claim(lineage, At(0)) == Answer::kHeld ? 'h' : 'n';
      (void)!::write(ends[1], &answer, 1);
      for (;;) ::pause();
    }
    ::close(ends[1]);
    char answer = 0;
    EXPECT_EQ(::read(ends[0], &answer, 1), 1);
    ::close(ends[0]);
    held_ = answer == 'h';
  }
  ~Claimant() { Kill(); }
  Claimant(const Claimant&) = delete;
  Claimant& operator=(const Claimant&) = delete;

  void Stop() const {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void Kill() {
    if (std::exchange(killed_, true)) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] bool held() const { return held_; }

 private:
  pid_t pid_ = -1;
  bool held_ = false;
  bool killed_ = false;
};

// S16: the same directory again, while the first process is stopped.
TEST(RootClaimProcesses, AStoppedProcessKeepsTheRootAndADeadOneDoesNot) {
  std::string root = std::filesystem::temp_directory_path() / "muster-claim-XXXXXX";
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  RootOwner self;
  self.job = "second";
  RootClaim claim(root, self, [&] { return OpenOwnerFile(root); });
  {
    Claimant first(root, kOne);
    Claimant sibling(root, kOne);
    ASSERT_TRUE(first.held());
    ASSERT_TRUE(sibling.held());
    sibling.Kill();
    first.Stop();
    EXPECT_EQ(claim.Claim(kTwo, At(0)), Answer::kLater);
    EXPECT_EQ(claim.Claim(kTwo, At(5)), Answer::kRefused);
    EXPECT_NE(claim.reason().message().find("process " + std::to_string(first.pid())),
              std::string::npos)
        << claim.reason().message();
    EXPECT_NE(claim.reason().message().find("job child"), std::string::npos);
  }
  EXPECT_EQ(claim.Claim(kTwo, At(6)), Answer::kHeld);
  const Claimant late(root, kOne);
  EXPECT_FALSE(late.held());
  const Claimant mate(root, kTwo);
  EXPECT_TRUE(mate.held());
  std::ifstream file(root + "/.muster-owner");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(DecodeOwner(text)->job, "second") << text;
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace muster::checkpoint
