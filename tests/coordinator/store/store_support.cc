#include "tests/coordinator/store/store_support.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "coordinator/store/store_writer.h"
#include "protocol/check.h"

namespace muster::store {

StoreTest::StoreTest() {
  std::string pattern = std::filesystem::temp_directory_path() / "muster-store-XXXXXX";
  MUSTER_CHECK(mkdtemp(pattern.data()) != nullptr, "the tests need a temporary directory");
  directory_ = pattern;
}

StoreTest::~StoreTest() {
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

std::unique_ptr<Journal> StoreTest::OpenJournal() const {
  Result<std::unique_ptr<Journal>> journal = Journal::Open(directory_);
  EXPECT_TRUE(journal.ok()) << journal.status().ToString();
  return journal.ok() ? std::move(journal).value() : nullptr;
}

JobRecord RecordOf(const std::string& job, std::int64_t number) {
  JobRecord record;
  record.job = JobName(job);
  record.spec.max_workers = 4;
  record.spec.steps = 1000;
  record.lineage = Lineage(0xabcdef);
  record.highest = Generation(number + 1);
  record.committed = Step(number);
  return record;
}

CheckpointEntry EntryOf(const std::string& job, std::int64_t step, std::int64_t generation) {
  CheckpointEntry entry;
  entry.record.job = job;
  entry.record.key = {.step = Step(step), .generation = Generation(generation)};
  entry.record.lineage = Lineage(0xabcdef);
  entry.record.world_size = 1;
  entry.record.directory = CheckpointDirectory(entry.record.key);
  entry.record.files = {{"r00000.safetensors", 100, 7, Rank(0)}};
  entry.record.bytes = 100;
  return entry;
}

std::vector<std::int64_t> StepsOf(const std::vector<CheckpointEntry>& entries) {
  std::vector<std::int64_t> steps;
  for (const CheckpointEntry& entry : entries) steps.push_back(entry.record.key.step.value());
  return steps;
}

Child::Child(const std::string& mode, const std::string& directory) {
  int ends[2] = {-1, -1};
  MUSTER_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "pipe2");
  const std::string out = std::to_string(ends[1]);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  MUSTER_CHECK(pid_ >= 0, "fork");
  if (pid_ == 0) {
    // Only calls that are safe between fork and exec.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::fcntl(ends[1], F_SETFD, 0);
    ::execl("/proc/self/exe", "store_test", mode.c_str(), directory.c_str(), out.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(ends[1]);
  pipe_ = ends[0];
}

Child::~Child() {
  Kill();
  ::close(pipe_);
}

std::int64_t Child::NextNumber() {
  std::int64_t number = 0;
  // Shorter than what a pipe writes in one piece, so a number is there whole or not at all.
  const ssize_t got = ::read(pipe_, &number, sizeof(number));
  return got == static_cast<ssize_t>(sizeof(number)) ? number : -1;
}

void Child::Kill() {
  if (std::exchange(ended_, true)) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

namespace {

bool Tell(int out, std::int64_t number) {
  return ::write(out, &number, sizeof(number)) == static_cast<ssize_t>(sizeof(number));
}

int WriteForEver(std::unique_ptr<Journal> journal, int out) {
  // Several batches wait at a time, so that some of them share a sync.
  constexpr std::size_t kMaxWaiting = 8;
  StoreWriter writer(std::move(journal), kMaxWaiting);
  std::atomic<bool> told = true;
  for (std::int64_t number = 1; told;) {
    Batch batch = {PutJob{RecordOf("job", number)},
                   PutCheckpoint{JobName("job"), EntryOf("job", number, 1)}};
    const Status status = writer.Enqueue(std::move(batch), [&told, out, number](const Status& s) {
      if (!s.ok() || !Tell(out, number)) told = false;
    });
    if (status.ok()) ++number;
  }
  return 0;
}

}  // namespace

int RunChild(const std::string& mode, const std::string& directory, int out) {
  std::signal(SIGPIPE, SIG_IGN);
  Result<std::unique_ptr<Journal>> journal = Journal::Open(directory);
  if (!journal.ok()) return 1;
  if (!Tell(out, 0)) return 0;
  if (mode == "--write") return WriteForEver(std::move(journal).value(), out);
  // Holds the lock until the parent kills it, or is gone.
  struct pollfd gone = {.fd = out, .events = 0, .revents = 0};
  while (::poll(&gone, 1, -1) <= 0) {
  }
  return 0;
}

}  // namespace muster::store
