#include "coordinator/core/config.h"

#include <gtest/gtest.h>

#include <functional>

namespace muster::coordinator {
namespace {

JobSpec Spec() {
  JobSpec spec;
  spec.min_workers = 2;
  spec.max_workers = 4;
  spec.steps = 100;
  spec.samples = 1000;
  spec.global_batch = 16;
  spec.micro_batches = 8;
  spec.tensors = {{"model", DType::kFloat32, {4, 3}, -1}};
  return spec;
}

TEST(Config, DefaultsAreConsistent) {
  const Config config;
  EXPECT_TRUE(config.Validate().ok()) << config.Validate().message();
}

TEST(Config, EachContradictionIsNamed) {
  const std::vector<std::pair<const char*, std::function<void(Config&)>>> rows = {
      {"forming-timeout", [](Config& c) { c.forming_timeout = Duration(); }},
      {"autonomy", [](Config& c) { c.autonomy = Duration(); }},
      {"progress-timeout", [](Config& c) { c.progress_timeout = Duration::Millis(-1); }},
      {"checkpoint-timeout", [](Config& c) { c.checkpoint_timeout = Duration(); }},
      {"settle", [](Config& c) { c.settle = Duration::Millis(-1); }},
      {"join-window", [](Config& c) { c.join_window = Duration::Millis(-1); }},
      {"growth-interval", [](Config& c) { c.growth_interval = Duration::Millis(-1); }},
      {"settle", [](Config& c) { c.settle = c.forming_timeout; }},
      {"first-step-timeout", [](Config& c) { c.first_step_timeout = c.progress_timeout / 2; }},
      {"max-patience", [](Config& c) { c.max_patience = c.autonomy; }},
      {"max-patience", [](Config& c) { c.max_patience = Duration::Millis(-1); }},
      {"cooldown", [](Config& c) { c.cooldown = Duration::Millis(-1); }},
      {"cooldown-forgiveness", [](Config& c) { c.cooldown_forgiveness = Duration::Millis(-1); }},
      {"max-cooldown", [](Config& c) { c.max_cooldown = c.cooldown / 2; }},
      {"cooldown-failures", [](Config& c) { c.cooldown_failures = 0; }},
      {"max-forming-attempts", [](Config& c) { c.max_forming_attempts = 0; }},
      {"max-consecutive-skips", [](Config& c) { c.max_consecutive_skips = 0; }},
  };
  for (const auto& [name, change] : rows) {
    Config config;
    change(config);
    const Status status = config.Validate();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << name;
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
  }
}

TEST(Timing, FollowsFromTheLease) {
  const Timing small = TimingOf(Spec(), 4);
  EXPECT_EQ(small.lease, Duration::Seconds(2));
  EXPECT_EQ(small.grace, Duration::Millis(500));
  EXPECT_EQ(small.heartbeat_interval, Duration::Millis(200));
  JobSpec patient = Spec();
  patient.failure_timeout = Duration::Seconds(8);
  EXPECT_EQ(TimingOf(patient, 10000).heartbeat_interval, Duration::Seconds(1));
}

TEST(Timing, AtLeastFiveHeartbeatsFitIntoALease) {
  JobSpec spec = Spec();
  spec.failure_timeout = Duration::Millis(500);
  const Timing timing = TimingOf(spec, 16000);
  EXPECT_LE(timing.heartbeat_interval * 5, timing.lease);
}

TEST(Spec, AGoodOne) { EXPECT_TRUE(ValidateSpec(Spec()).ok()); }

TEST(Spec, EachMistakeIsNamed) {
  const std::vector<std::pair<const char*, std::function<void(JobSpec&)>>> rows = {
      {"min-workers", [](JobSpec& s) { s.min_workers = 0; }},
      {"max-workers", [](JobSpec& s) { s.max_workers = 1; }},
      {"max-workers", [](JobSpec& s) { s.max_workers = kMaxWorldSize + 1; }},
      {"micro-batches", [](JobSpec& s) { s.micro_batches = 3; }},
      {"micro-batches", [](JobSpec& s) { s.micro_batches = kMaxMicroBatches + 1; }},
      {"samples", [](JobSpec& s) { s.samples = 0; }},
      {"global-batch", [](JobSpec& s) { s.global_batch = 7; }},
      {"failure-timeout", [](JobSpec& s) { s.failure_timeout = Duration::Millis(1); }},
      {"steps", [](JobSpec& s) { s.steps = -1; }},
      {"checkpoint-every", [](JobSpec& s) { s.checkpoint_every = -1; }},
      {"checkpoint-keep", [](JobSpec& s) { s.checkpoint_keep = 0; }},
      {"checkpoint-keep-every", [](JobSpec& s) { s.checkpoint_keep_every = -1; }},
      {"checkpoint directory", [](JobSpec& s) { s.checkpoint_every = 5; }},
      {"name", [](JobSpec& s) { s.tensors[0].name.clear(); }},
      {"twice", [](JobSpec& s) { s.tensors.push_back(s.tensors[0]); }},
      {"dimension", [](JobSpec& s) { s.tensors[0].cut_dimension = 2; }},
      {"checkpoint directory", [](JobSpec& s) { s.tensors[0].cut_dimension = 0; }},
  };
  for (const auto& [name, change] : rows) {
    JobSpec spec = Spec();
    change(spec);
    const Status status = ValidateSpec(spec);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << name;
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
  }
  JobSpec negative = Spec();
  negative.tensors[0].shape = {-1};
  EXPECT_FALSE(ValidateSpec(negative).ok());
}

TEST(Difference, NothingWhenEqual) { EXPECT_EQ(DifferenceOf(Spec(), Spec()), ""); }

TEST(Difference, EachFieldIsNamedWithBothValues) {
  const std::vector<std::pair<const char*, std::function<void(JobSpec&)>>> rows = {
      {"min-workers: 2 there, 1 here", [](JobSpec& s) { s.min_workers = 1; }},
      {"max-workers: 4 there, 5 here", [](JobSpec& s) { s.max_workers = 5; }},
      {"steps: 100 there, 200 here", [](JobSpec& s) { s.steps = 200; }},
      {"seed: 0 there, 7 here", [](JobSpec& s) { s.seed = 7; }},
      {"samples: 1000 there, 2 here", [](JobSpec& s) { s.samples = 2; }},
      {"global-batch: 16 there, 8 here", [](JobSpec& s) { s.global_batch = 8; }},
      {"micro-batches: 8 there, 16 here", [](JobSpec& s) { s.micro_batches = 16; }},
      {"failure-timeout", [](JobSpec& s) { s.failure_timeout = Duration::Seconds(3); }},
      {"checkpoint directory:  there, /x here", [](JobSpec& s) { s.checkpoint_directory = "/x"; }},
      {"checkpoint-every: 0 there, 5 here", [](JobSpec& s) { s.checkpoint_every = 5; }},
      {"backend: tcp there, nccl here", [](JobSpec& s) { s.backend = Backend::kNccl; }},
      {"checkpoint-keep: 3 there, 4 here", [](JobSpec& s) { s.checkpoint_keep = 4; }},
      {"checkpoint-keep-every: 0 there, 50 here", [](JobSpec& s) { s.checkpoint_keep_every = 50; }},
      {"number of tensors: 1 there, 0 here", [](JobSpec& s) { s.tensors.clear(); }},
      {"tensor 0: model F32 [4,3] cut -1 there, model F32 [4,3] cut 1 here",
       [](JobSpec& s) { s.tensors[0].cut_dimension = 1; }},
  };
  for (const auto& [text, change] : rows) {
    JobSpec other = Spec();
    change(other);
    EXPECT_NE(DifferenceOf(Spec(), other).find(text), std::string::npos)
        << DifferenceOf(Spec(), other);
  }
}

}  // namespace
}  // namespace muster::coordinator
