// Several processes at one directory, and one that has little memory.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "checkpoint/format.h"
#include "checkpoint/posix_file_system.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "checkpoint/sweep.h"
#include "checkpoint/writer.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

// Runs `work` in a child that dies with this process; its result is the child's exit status.
pid_t Fork(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::_exit(work());
  }
  return child;
}

// 0 when the child returned 0.
int Wait(pid_t child) {
  int status = -1;
  return ::waitpid(child, &status, 0) == child ? status : -1;
}

int Complain(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  return 1;
}

constexpr std::int32_t kRanks = 4;
constexpr std::int64_t kSaves = 200;

// What the processes below have in common.
struct Shared {
  pthread_barrier_t barrier;
  struct File {
    std::array<char, 64> name;
    std::int64_t bytes;
    std::uint64_t digest;
  };
  std::array<File, kRanks> files;
};

CheckpointRecord RecordOfAll(const Shared& shared, const State& state, const CheckpointKey& key) {
  std::vector<FileRecord> files;
  for (std::int32_t r = 0; r < kRanks; ++r) {
    const Shared::File& file = shared.files.at(static_cast<std::size_t>(r));
    files.push_back({file.name.data(), file.bytes, file.digest, Rank(r), {}});
  }
  return RecordOf(state, key, files);
}

// One rank's part in a save of which one is kept. Every rank removes and sweeps, though one that is
// elected would do: what another has removed already is no error.
Status SaveAndClean(FileSystem& fs, const std::string& root, Rank rank, std::int64_t step,
                    Shared& shared) {
  const State state =
      MakeState({{"w", DType::kFloat32, {11, 3}, 0}}, static_cast<std::uint64_t>(step));
  const CheckpointKey key = Key(step, 1);
  const Result<FileRecord> file =
      WriteAlone(fs, root, PlanOf(state, key, rank, kRanks), ShardData(state, rank, kRanks));
  if (!file.ok()) return file.status();
  Shared::File& mine = shared.files.at(static_cast<std::size_t>(rank.value()));
  mine = {{}, file->bytes, file->header_digest};
  file->name.copy(mine.name.data(), mine.name.size() - 1);
  ::pthread_barrier_wait(&shared.barrier);
  const CheckpointRecord record = RecordOfAll(shared, state, key);
  if (rank == Rank(0)) MUSTER_RETURN_IF_ERROR(WriteManifest(fs, root, record).status());
  ::pthread_barrier_wait(&shared.barrier);
  if (step > 1) MUSTER_RETURN_IF_ERROR(RemoveCheckpoint(fs, root, DirectoryName(Key(step - 1, 1))));
  const SweepRule rule{Generation(1), Step(step + 1), {key}, {}};
  MUSTER_RETURN_IF_ERROR(SweepLeftovers(fs, root, rule).status());
  if (step % 20 == 0) MUSTER_RETURN_IF_ERROR(LoadAndCompare(fs, root, record, state, 3));
  // The files of the next save are told only when all have read those of this one.
  ::pthread_barrier_wait(&shared.barrier);
  return {};
}

// S10: four processes, one directory, one checkpoint kept, 200 saves.
TEST(Processes, ShareADirectory) {
  const TemporaryDirectory root;
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* shared = new (memory) Shared();
  pthread_barrierattr_t attributes;
  ::pthread_barrierattr_init(&attributes);
  ::pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  ::pthread_barrier_init(&shared->barrier, &attributes, kRanks);
  std::vector<pid_t> children;
  for (std::int32_t r = 0; r < kRanks; ++r) {
    children.push_back(Fork([&root, shared, r] {
      PosixFileSystem fs;
      for (std::int64_t step = 1; step <= kSaves; ++step) {
        const Status status = SaveAndClean(fs, root.path(), Rank(r), step, *shared);
        if (status.ok()) continue;
        return Complain("rank " + std::to_string(r) + ": " + status.ToString());
      }
      return 0;
    }));
  }
  bool failed = false;
  for (std::size_t ended = 0; ended < children.size(); ++ended) {
    int status = -1;
    const pid_t child = ::waitpid(-1, &status, 0);
    if (status != 0 && !failed) {
      failed = true;
      // The others wait for it at the barrier.
      for (const pid_t other : children) {
        if (other != child) ::kill(other, SIGKILL);
      }
    }
  }
  EXPECT_FALSE(failed);
  PosixFileSystem fs;
  EXPECT_EQ(*fs.List(root.path()), std::vector<std::string>{DirectoryName(Key(kSaves, 1))});
  ::munmap(memory, sizeof(Shared));
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryCanBeLimited = false;  // the shadow memory is far larger than any limit
#else
constexpr bool kMemoryCanBeLimited = true;
#endif

constexpr std::int64_t kMiB = std::int64_t{1} << 20U;

// From now on this process can have no more than `bytes` besides what it has.
bool LimitMemory(std::int64_t bytes) {
  std::int64_t pages = 0;
  if (!(std::ifstream("/proc/self/statm") >> pages)) return false;
  struct rlimit limit {};
  limit.rlim_cur = limit.rlim_max = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + bytes);
  return ::setrlimit(RLIMIT_AS, &limit) == 0;
}

// L13: to load its eighth of a tensor of 64 MiB, a rank needs the memory for that and a fixed
// buffer, and reads hardly more than that from the file.
TEST(Processes, LoadInLittleMemory) {
  if (!kMemoryCanBeLimited) GTEST_SKIP() << "a sanitizer needs the memory";
  const TemporaryDirectory root;
  PosixFileSystem fs;
  const State state = MakeState({{"w", DType::kU8, {64 * kMiB}, 0}}, 13);
  const Result<CheckpointRecord> record = Save(fs, root.path(), state, Key(1, 1), 1);
  ASSERT_TRUE(record.ok()) << record.status().ToString();
  const auto load = [&] {
    for (std::int32_t rank = 0; rank < 8; ++rank) {
      const Box box = BoxOf(state.tensors[0], rank, 8);
      Bytes shard(static_cast<std::size_t>(box.count()));
      const WantedBox wanted{0, box, shard};
      const Result<LoadReport> report = LoadBoxes(fs, root.path(), *record, {&wanted, 1});
      if (!report.ok()) return Complain(report.status().ToString());
      if (!std::equal(shard.begin(), shard.end(), state.bytes[0].begin() + box.ranges[0].lo)) {
        return Complain("other bytes");
      }
      if (report->bytes_read > box.count() + 2 * kMiB) {
        return Complain(std::to_string(report->bytes_read) + " bytes were read");
      }
    }
    return 0;
  };
  EXPECT_EQ(Wait(Fork([&] {
              if (!LimitMemory(8 * kMiB + 16 * kMiB)) return Complain("no limit");
              if (AlignedBuffer large; large.Resize(64 * kMiB).ok()) return Complain("not limited");
              return load();
            })),
            0);
}

// L13 for the way there: beyond the data itself a save needs hardly any memory.
TEST(Processes, SaveInLittleMemory) {
  if (!kMemoryCanBeLimited) GTEST_SKIP() << "a sanitizer needs the memory";
  const TemporaryDirectory root;
  const State spec{{{"w", DType::kU8, {64 * kMiB}, 0}}, {}};
  EXPECT_EQ(Wait(Fork([&] {
              PosixFileSystem fs;
              AlignedBuffer data;
              if (!data.Resize(64 * kMiB).ok()) return Complain("no memory at all");
              if (!LimitMemory(8 * kMiB)) return Complain("no limit");
              const Result<FileRecord> file =
                  WriteAlone(fs, root.path(), PlanOf(spec, Key(1, 1), Rank(0), 1), data);
              return file.ok() ? 0 : Complain(file.status().ToString());
            })),
            0);
}

}  // namespace
}  // namespace muster::checkpoint
