// The way to GPUs: the CUDA runtime and NCCL, which are looked for when they are first needed, so
// that one binary serves machines with and without them.
//
// MUSTER_CUDART_LIBRARY and MUSTER_NCCL_LIBRARY name the files to load instead of
// libcudart.so.13 (or .12) and libnccl.so.2.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "protocol/ids.h"
#include "protocol/status.h"
#include "protocol/time.h"
#include "worker/collective/device.h"
#include "worker/collective/device_communicator.h"

namespace muster {

// The GPU of this number among those visible to the process (CUDA_VISIBLE_DEVICES). Loads the CUDA
// runtime at its first call. kUnimplemented when Muster was built without GPUs, kUnavailable when
// the runtime or the device is missing or too old; the message is one line that names it.
[[nodiscard]] Result<std::shared_ptr<Device>> OpenDevice(int ordinal);

// Ok when NCCL can be used: it is there, new enough, and nothing in the environment makes an abort
// impossible. Otherwise one line that says what is missing. Loads it at its first call.
[[nodiscard]] Status NcclUsable();
// "NCCL 2.28.9"; empty when it cannot be used.
[[nodiscard]] std::string NcclVersionText();

// A name under which the members of one generation find each other. It starts a thread and a
// listening socket in this process, which end once all members have come: ask for it when the
// members are sealed, and once for each generation. Never to be used twice.
[[nodiscard]] Result<std::string> MintNcclId();
constexpr std::size_t kNcclIdBytes = 128;

struct NcclGroup {
  Generation generation;
  Rank rank;
  std::int32_t world_size = 1;
  std::string id;  // MintNcclId() of rank 0; not needed for a world of one
};

struct NcclOptions {
  Duration init_deadline = Duration::Seconds(30);       // meeting the others, connections included
  Duration progress_deadline = Duration::Seconds(600);  // an operation, once formed
  // An abort that takes longer than `soft` is told of; one that takes longer than
  // `hard` is given up: AwaitAborted() returns kInternal.
  Duration abort_soft_deadline = Duration::Seconds(10);
  Duration abort_hard_deadline = Duration::Seconds(15);
  // Lines for people, from any thread.
  std::function<void(const std::string&)> say;
};

// Not yet connected. The device's memory is freed when the last user of the device is gone.
[[nodiscard]] Result<std::shared_ptr<DeviceCommunicator>> MakeNcclCommunicator(
    std::shared_ptr<Device> device, NcclGroup group, NcclOptions options);

}  // namespace muster
