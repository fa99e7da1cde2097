// The functions of NCCL that are used, found at run time.
#pragma once

#include <nccl.h>

#include <functional>
#include <string>

#include "protocol/status.h"

namespace muster {

// The prefix "nccl" is left out.
#define MUSTER_NCCL_FUNCTIONS(X) \
  X(GetVersion)                  \
  X(GetUniqueId)                 \
  X(CommInitRankConfig)          \
  X(CommGetAsyncError)           \
  X(CommAbort)                   \
  X(GetErrorString)              \
  X(GetLastError)                \
  X(AllReduce)                   \
  X(Broadcast)                   \
  X(AllGather)                   \
  X(Send)                        \
  X(Recv)                        \
  X(GroupStart)                  \
  X(GroupEnd)

struct NcclApi {
#define MUSTER_DECLARE(name) decltype(&::nccl##name) name = nullptr;
  MUSTER_NCCL_FUNCTIONS(MUSTER_DECLARE)
#undef MUSTER_DECLARE
  int version = 0;  // 22809 is 2.28.9

  // Looks for NCCL at the first call and keeps the answer; prepares the environment that NCCL reads
  // (see PrepareEnvironment). kUnavailable or kFailedPrecondition, one line, when it cannot be
  // used.
  [[nodiscard]] static Result<const NcclApi*> Load();
};

// Aborts of this version and newer are usable with several threads.
inline constexpr int kMinNcclVersion = 22600;

// 22809 -> "2.28.9".
[[nodiscard]] std::string NcclVersionName(int version);

// What NCCL and CUDA read from the environment and what would make an abort impossible is switched
// off with a line through `say` where that can be done, and refused where it cannot. To be called
// before the first call of NCCL, while no other thread reads the environment.
[[nodiscard]] Status PrepareEnvironment(const std::function<void(const std::string&)>& say);

}  // namespace muster
