#include "tests/protocol/message_samples.h"

namespace muster {
namespace {

JobSpec SampleSpec() {
  return JobSpec{.min_workers = 2,
                 .max_workers = 4,
                 .steps = 100,
                 .seed = 0xfedcba9876543210ULL,
                 .samples = 5000,
                 .global_batch = 64,
                 .micro_batches = 16,
                 .failure_timeout = Duration::Millis(1500),
                 .checkpoint_directory = "/data/check points/ü",
                 .checkpoint_every = 10,
                 .checkpoint_keep = 5,
                 .checkpoint_keep_every = 1000,
                 .tensors = {{"model/w.0", DType::kBFloat16, {300, 7}, -1},
                             {"adam.m", DType::kFloat64, {2100}, 0},
                             {"scale", DType::kU8, {}, -1}},
                 .backend = Backend::kNccl};
}

CheckpointKey SampleKey() { return {.step = Step(40), .generation = Generation(3)}; }

CheckpointRecord SampleCheckpoint() {
  return CheckpointRecord{.job = "lm-1",
                          .key = SampleKey(),
                          .lineage = Lineage(77),
                          .world_size = 2,
                          .directory = CheckpointDirectory(SampleKey()),
                          .tensors = SampleSpec().tensors,
                          .files = {{"r00000.safetensors", 1234, 0xabcULL, Rank(0)},
                                    {"r00001.safetensors", 4321, ~0ULL, Rank(1)}},
                          .bytes = 5555};
}

Member SampleMember() { return {.worker = WorkerId("n1:0"), .incarnation = Incarnation(0x1234)}; }

End SampleEnd() {
  return {.kind = EndKind::kFailed, .step = Step(9), .reason = "line one\nline \"two\" ✓"};
}

Hello SampleHello() {
  return Hello{.major = 1,
               .minor = 7,
               .job = JobName("lm-1"),
               .member = SampleMember(),
               .explicit_name = true,
               .node = NodeName("host.example"),
               .pid = 4711,
               .address = "[fe80::1%eth0]:5000",
               .able = true,
               .spec = SampleSpec(),
               .highest = Generation(6),
               .attachment = Attachment{.record = SampleGeneration(),
                                        .started = true,
                                        .committed = Step(41),
                                        .aborted_for = Generation(6),
                                        .stopped = true},
               .found = Found{.highest = Generation(9),
                              .checkpoints = {{SampleKey(), Lineage(77), 2, ~0ULL, 5555}}}};
}

Heartbeat SampleHeartbeat() {
  return Heartbeat{.sequence = 12,
                   .generation = Generation(5),
                   .committed = Step(42),
                   .loss = 1.0 / 3,
                   .stage = Stage::kReduce,
                   .operations = 99,
                   .waiting = true,
                   .phase = "évaluation",
                   .phase_left = Duration::Seconds(-3),
                   .skips = 2};
}

Ready SampleReady() {
  return Ready{.forming = Generation(6),
               .generation = Generation(5),
               .committed = Step(41),
               .wishes = {.checkpoint = true, .reform = true},
               .open = OpenStep{.step = Step(42),
                                .prepared = true,
                                .vote = Outcome::kSkip,
                                .wishes = {.checkpoint = false, .reform = true}},
               .holds_state = true,
               .lineage = Lineage(~0ULL),
               .abort_ms = 1.25};
}

}  // namespace

GenerationRecord SampleGeneration() {
  return GenerationRecord{
      .generation = Generation(5),
      .lineage = Lineage(0x00000000000000ffULL),
      .previous = Generation(3),
      .members = {{SampleMember(), Rank(0), NodeName("n1"), "10.0.0.1:4000", Rank(2)},
                  {{WorkerId("b"), Incarnation(~0ULL)}, Rank(1), NodeName("n2"), "h:1", Rank(-1)}},
      .decision = {.generation = Generation(3),
                   .step = Step(42),
                   .outcome = Outcome::kApply,
                   .wishes = {.checkpoint = true, .reform = false}},
      .restore = {.source = RestoreSource::kLive,
                  .step = Step(42),
                  .base = Generation(3),
                  .base_world_size = 3,
                  .checkpoint = SampleKey(),
                  .directory = "s000000000040-g00000003",
                  .manifest_digest = 0x8000000000000000ULL}};
}

JobRecord SampleJobRecord() {
  GenerationRecord latest = SampleGeneration();
  latest.generation = Generation(6);
  latest.restore.source = RestoreSource::kCheckpoint;
  return JobRecord{.job = JobName("lm-1"),
                   .spec = SampleSpec(),
                   .lineage = Lineage(123),
                   .highest = Generation(7),
                   .latest = latest,
                   .latest_started = true,
                   .started = SampleGeneration(),
                   .committed = Step(42),
                   .rollbacks = {{Generation(2), Step(10)}, {Generation(4), Step(20)}},
                   .gone = {SampleMember(), {WorkerId("b"), Incarnation(5)}},
                   .drained = {{WorkerId("b"), NodeName()}, {WorkerId(), NodeName("n2")}},
                   .end = SampleEnd()};
}

CheckpointEntry SampleCheckpointEntry() {
  return {.record = SampleCheckpoint(),
          .state = CheckpointState::kVoid,
          .manifest_digest = 0xdeadbeefULL,
          .strikes = 2,
          .pinned = true};
}

std::vector<Message> SampleMessages() {
  const Generation g(5);
  const CheckpointKey key = SampleKey();
  return {
      SampleHello(),
      Able{},
      SampleHeartbeat(),
      SampleReady(),
      Formed{.generation = g, .form_ms = 2.5, .restore_ms = 3.5, .restored_bytes = 1 << 20},
      FormFailed{g, Code::kDataLoss, "bad block", Rank(1), key, true, true},
      OperationFailed{g, Step(42), Code::kUnavailable, "reset by peer", Rank(3)},
      Stopped{.generation = g, .step = Step(42)},
      Leave{.reason = "SIGTERM", .finish = true, .within = Duration::Seconds(30)},
      Finished{.generation = g, .step = Step(100)},
      ShardWritten{key, Lineage(77), 4, FileRecord{"r00003.safetensors", 100, 9, Rank(3)}},
      ShardFailed{key, Rank(3), Code::kResourceExhausted, "disk full"},
      ManifestWritten{key, 0x55ULL, Code::kPermissionDenied, "read-only"},
      CheckpointRemoved{.key = key, .pinned = true},
      LauncherHello{.major = 1, .minor = 7, .job = JobName("lm-1"), .node = NodeName("n1")},
      Attest{WorkerId("n1:0"), 4711, true, "killed by signal 9 (SIGKILL)"},
      Welcome{1, 7, Lineage(5), Duration::Seconds(2), Duration::Millis(200), Duration::Seconds(600),
              Duration::Seconds(30), Duration::Seconds(10), "10.0.0.9"},
      Refused{.code = Code::kFenced, .reason = "declared dead"},
      Ack{.sequence = 12, .interval = Duration::Millis(200)},
      Interrupt{.generation = g, .cause = Cause::kLeaseExpired, .reason = "silent for 2 s"},
      Assign{.record = SampleGeneration()},
      Start{.generation = g},
      Wish{.generation = g, .wishes = {.checkpoint = true, .reform = true}},
      WriteManifest{.record = SampleCheckpoint()},
      CheckpointAnnounced{.key = key},
      CheckpointAborted{.key = key, .reason = "superseded"},
      RemoveCheckpoint{.key = key, .directory = "s000000000040-g00000003"},
      SweepCheckpoints{.generation = g, .step = Step(40), .known = {key}},
      Ended{.end = SampleEnd(), .left = true},
      GroupId{.generation = g, .id = std::string("\0\xff\x80\"id", 6)},
  };
}

}  // namespace muster
