// All bounds and defaults in one place, with the relations between them checked by the compiler.
// Every program and every library takes its default from here, so that none differs by the place
// where it is set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/time.h"

namespace muster {

// Messages carry this version in their hello. Another major version is refused.
inline constexpr int kProtocolMajor = 1;
inline constexpr int kProtocolMinor = 0;

inline constexpr std::uint16_t kDefaultPort = 7077;

// Bytes of one control message. A job's tensor list travels in the hello, hence not smaller.
inline constexpr std::size_t kMaxMessageBytes = std::size_t{4} << 20U;
inline constexpr int kMaxJsonDepth = 16;
// Error texts from workers are cut to this, so that a thousand failing workers cost little.
inline constexpr std::size_t kMaxReasonBytes = 1024;
inline constexpr std::size_t kMaxNameBytes = 128;
inline constexpr std::size_t kMaxAddressBytes = 300;
// By which the members of a generation find each other; NCCL's take 128.
inline constexpr std::size_t kMaxGroupIdBytes = 256;
inline constexpr std::int32_t kMaxWorldSize = 16384;
inline constexpr std::int32_t kMaxMicroBatches = 65536;
inline constexpr std::size_t kMaxTensors = 500'000;
inline constexpr std::size_t kMaxDimensions = 16;
inline constexpr std::size_t kMaxJobs = 256;
inline constexpr std::size_t kMaxSessions = 20'000;
// Messages waiting for one slow reader; past it the session is closed, never waited for.
inline constexpr std::size_t kMaxQueuedMessages = 1024;
inline constexpr std::size_t kMaxQueuedBytes = std::size_t{32} << 20U;
// Events kept per job for `GET …/events`; older ones are dropped.
inline constexpr std::size_t kMaxEvents = 4096;
inline constexpr std::size_t kMaxIncidents = 256;
// Workers named by one incident.
inline constexpr std::size_t kMaxBlamed = 64;
// Saves of one job under way at a time, and removals of checkpoints not reported yet.
inline constexpr std::size_t kMaxSaves = 64;
inline constexpr std::size_t kMaxRemovals = 256;
// Checkpoints that a joining worker names of those it found, and those that a sweep is to leave.
inline constexpr std::size_t kMaxFound = 8;
inline constexpr std::size_t kMaxSweepKnown = 16384;
// Places of one job that operators have drained.
inline constexpr std::size_t kMaxDrained = 1024;
// Slots of one job whose failures are remembered.
inline constexpr std::size_t kMaxCooldownSlots = 1024;

// The one knob: how long a worker may stay silent before it is taken for dead.
inline constexpr Duration kDefaultFailureTimeout = Duration::Seconds(2);
inline constexpr Duration kMinFailureTimeout = Duration::Millis(100);
inline constexpr int kHeartbeatsPerLease = 10;
inline constexpr Duration kDefaultSettle = Duration::Millis(50);
inline constexpr Duration kDefaultJoinWindow = Duration::Seconds(5);
inline constexpr Duration kDefaultGrowthInterval = Duration::Seconds(5);
inline constexpr Duration kDefaultFormingTimeout = Duration::Seconds(30);
inline constexpr Duration kDefaultAutonomy = Duration::Seconds(600);
inline constexpr Duration kDefaultFirstStepTimeout = Duration::Seconds(600);
inline constexpr Duration kDefaultProgressTimeout = Duration::Seconds(10);
inline constexpr Duration kMaxPatience = Duration::Seconds(30);
inline constexpr Duration kDefaultCheckpointTimeout = Duration::Seconds(120);
inline constexpr int kMaxFormingAttempts = 20;
inline constexpr int kMaxConsecutiveSkips = 100;
inline constexpr int kCheckpointStrikes = 2;
inline constexpr int kDefaultCooldownFailures = 3;
inline constexpr Duration kDefaultCooldown = Duration::Seconds(10);
inline constexpr Duration kDefaultMaxCooldown = Duration::Seconds(300);
inline constexpr Duration kDefaultCooldownForgiveness = Duration::Seconds(600);

static_assert(kHeartbeatsPerLease >= 5, "a lease must survive four lost heartbeats");
static_assert(kMaxReasonBytes < kMaxMessageBytes);

}  // namespace muster
