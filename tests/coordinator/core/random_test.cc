// Random runs of the coordinator, each from one seed: with honest workers and faults, and with
// messages that make no sense at all.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/coordinator/core/mini_world.h"

namespace muster::coordinator {
namespace {

// In the environment, MUSTER_RANDOM_SEEDS asks for another number of runs and MUSTER_RANDOM_FIRST
// for another first seed: with it and 1, a run that failed comes again.
std::uint64_t FromEnvironment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::vector<std::uint64_t> Seeds(std::uint64_t count) {
  const std::uint64_t first = FromEnvironment("MUSTER_RANDOM_FIRST", 1);
  std::vector<std::uint64_t> seeds;
  for (std::uint64_t i = 0; i < FromEnvironment("MUSTER_RANDOM_SEEDS", count); ++i) {
    seeds.push_back(first + i);
  }
  return seeds;
}

class RandomFaults : public testing::TestWithParam<MiniWorld::Kind> {};

TEST_P(RandomFaults, StepsAreAtomicAndTrainingResumes) {
  std::size_t steps = 0;
  for (const std::uint64_t seed : Seeds(10)) {
    MiniWorld world(seed, GetParam());
    world.RunFaults(1500);
    const bool resumed = world.RunHealed(2000);
    steps += world.steps();
    for (const std::string& broken : world.violations()) {
      ADD_FAILURE() << "seed " << seed << ": " << broken;
    }
    EXPECT_TRUE(resumed || !world.violations().empty()) << "seed " << seed << " does not resume:\n"
                                                        << world.Describe();
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(steps, 50U);  // a world that does nothing breaks nothing
}

INSTANTIATE_TEST_SUITE_P(Jobs, RandomFaults,
                         testing::Values(MiniWorld::Kind{}, MiniWorld::Kind{.sharded = true},
                                         MiniWorld::Kind{.loses_store = true},
                                         MiniWorld::Kind{.sharded = true, .loses_store = true}),
                         [](const auto& param) {
                           return std::string(param.param.sharded ? "sharded" : "replicated") +
                                  (param.param.loses_store ? "_loses_store" : "");
                         });

// The first seed that fails names itself.
class Nonsense {
 public:
  explicit Nonsense(std::uint64_t seed) : prng_(seed), driver_(Config()) {}

  void Run(int inputs) {
    for (int i = 0; i < inputs && driver_.violations().empty(); ++i) {
      const SessionId session(static_cast<std::int64_t>(1 + prng_.Below(6)));
      switch (prng_.Below(12)) {
        case 0: driver_.Handle(Closed{session}); break;
        case 1:
          driver_.Handle(Lagged{Duration::Millis(static_cast<std::int64_t>(prng_.Below(5000)))});
          break;
        case 2:
          if (prng_.Chance(1, 8)) driver_.Restart(prng_.Chance(1, 4));
          break;
        case 3:
          if (prng_.Chance(1, 8)) driver_.Handle(ForceAdopt{JobName("job")});
          break;
        case 4: Advance(); break;
        case 5:
          if (prng_.Chance(1, 8)) {
            driver_.Handle(Drain{JobName("job"), Someone().worker, NodeName(),
                                 Duration::Seconds(Number() % 1000), prng_.Chance(1, 2)});
          }
          break;
        default: driver_.Receive(session, Draw()); break;
      }
      for (Send& send : driver_.Take().sends) {
        if (auto* assign = std::get_if<Assign>(&send.message)) record_ = *assign->record;
      }
      (void)driver_.core().Describe(JobName("job"), driver_.now());
    }
  }
  [[nodiscard]] const std::vector<std::string>& violations() const { return driver_.violations(); }

 private:
  void Advance() {
    driver_.RunUntil(driver_.now() + Duration::Millis(static_cast<std::int64_t>(prng_.Below(3000))),
                     Duration::Seconds(10), [] {});
  }
  std::int64_t Number() {
    switch (prng_.Below(8)) {
      case 0: return -1;
      case 1: return (std::int64_t{1} << 53U) - 1;
      default: return static_cast<std::int64_t>(prng_.Below(6));
    }
  }
  Generation Any() {
    return prng_.Chance(1, 2) && record_ ? record_->generation : Generation(Number());
  }
  Member Someone() {
    return {WorkerId(std::string(1, static_cast<char>('a' + prng_.Below(4)))),
            Incarnation(1 + prng_.Below(2))};
  }
  CheckpointKey Key() { return {Step(Number()), Any()}; }
  Lineage AnyLineage() {
    return prng_.Chance(3, 4) && record_ ? record_->lineage : Lineage(prng_.Below(3));
  }
  Message DrawHello() {
    Hello hello;
    hello.job = JobName("job");
    hello.member = Someone();
    hello.node = NodeName("n");
    hello.pid = Number();
    hello.able = prng_.Chance(3, 4);
    hello.explicit_name = prng_.Chance(1, 8);
    hello.highest = Generation(Number());
    hello.spec.max_workers = hello.spec.micro_batches = 3;
    hello.spec.samples = hello.spec.global_batch = 3;
    hello.spec.tensors = {{"t", DType::kFloat32, {3}, 0}};
    hello.spec.checkpoint_directory = "/c";
    hello.spec.steps = 4;
    if (record_ && prng_.Chance(1, 2)) {
      hello.attachment =
          Attachment{*record_, prng_.Chance(1, 2), Step(Number()), Any(), prng_.Chance(1, 2)};
      hello.attachment->record.generation = Any();
    }
    return hello;
  }
  Message DrawReady() {
    Ready ready;
    ready.forming = Any();
    ready.generation = Any();
    ready.committed = Step(Number());
    ready.holds_state = prng_.Chance(1, 2);
    ready.lineage = AnyLineage();
    ready.abort_ms = prng_.Chance(1, 2) ? 1e300 : -1;
    ready.wishes.checkpoint = prng_.Chance(1, 2);
    if (prng_.Chance(1, 2)) {
      ready.open = OpenStep{Step(Number()), prng_.Chance(1, 2), Outcome::kApply, {true, true}};
    }
    return ready;
  }
  Message DrawBeat() {
    Heartbeat beat;
    beat.generation = Any();
    beat.committed = Step(Number());
    beat.operations = prng_.Next();
    beat.waiting = prng_.Chance(1, 2);
    beat.skips = Number();
    beat.phase = prng_.Chance(1, 4) ? "x" : "";
    beat.phase_left = Duration::Seconds(prng_.Chance(1, 2) ? 946'080'000 : 1);
    return beat;
  }
  Message DrawSave() {
    switch (prng_.Below(4)) {
      case 0: return ShardFailed{Key(), Rank(0), Code::kInternal, ""};
      case 1:
        return ManifestWritten{Key(), 1, prng_.Chance(1, 2) ? Code::kOk : Code::kInternal, ""};
      case 2: return CheckpointRemoved{Key()};
      default: {
        ShardWritten shard;
        shard.key = Key();
        shard.lineage = AnyLineage();
        shard.world_size = static_cast<std::int32_t>(prng_.Below(4));
        shard.file.rank = Rank(static_cast<std::int32_t>(prng_.Below(4)) - 1);
        return shard;
      }
    }
  }
  Message Draw() {
    const Rank rank(static_cast<std::int32_t>(prng_.Below(6)) - 1);
    switch (prng_.Below(18)) {
      case 0: return LauncherHello{1, 0, JobName("job"), NodeName("n")};
      case 1: return Attest{Someone().worker, Number(), prng_.Chance(1, 2), "x"};
      case 2: return Able{};
      case 3: return DrawBeat();
      case 4:
      case 5: return DrawReady();
      case 6:
      case 7: return Formed{Any(), 1e300, -1, Number()};
      case 8: return FormFailed{Any(), Code::kDataLoss, "x", rank, Key()};
      case 9: return OperationFailed{Any(), Step(Number()), Code::kInternal, "x", rank};
      case 10: return Stopped{Any(), Step(Number())};
      case 11: return Leave{"x", prng_.Chance(1, 4), Duration::Nanos(Number())};
      case 12: return prng_.Chance(1, 4) ? Message(Finished{Any(), Step(Number())}) : DrawBeat();
      case 13: return DrawSave();
      case 14: return Start{Any()};  // not a worker's to send
      default: return DrawHello();
    }
  }

  Prng prng_;
  Driver driver_;
  std::optional<GenerationRecord> record_;
};

TEST(RandomNonsense, NeverHarmsTheCoordinator) {
  for (const std::uint64_t seed : Seeds(30)) {
    Nonsense nonsense(seed);
    nonsense.Run(600);
    ASSERT_TRUE(nonsense.violations().empty())
        << "seed " << seed << ": " << nonsense.violations()[0];
  }
}

}  // namespace
}  // namespace muster::coordinator
