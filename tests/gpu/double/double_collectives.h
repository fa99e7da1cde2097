// The operations of the NCCL double: what each moves, and how it is summed. TEST CODE.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/gpu/double/double_mesh.h"

namespace muster::gpu_double {

class Comm;

enum class Kind : std::uint32_t {
  kAllReduce = 1,
  kBroadcast = 2,
  kAllGather = 3,
  kReduceScatter = 4,
  kPairs = 5,  // the sends and receives of one group
};

// A send or a receive.
struct Pair {
  bool sends = false;
  int peer = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

struct Operation {
  Kind kind = Kind::kAllReduce;
  const std::byte* send = nullptr;  // where the host finds it
  std::byte* receive = nullptr;
  std::size_t count = 0;  // as in NCCL's call
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
  int root = 0;
  std::vector<Pair> pairs;
  cudaStream_t stream = nullptr;
  int number = 0;              // of the communicator's operations, from 1
  std::uint32_t sequence = 0;  // of its collectives, from 1; 0 for pairs
};

// 0 for a type that the double does not know.
[[nodiscard]] std::size_t SizeOf(ncclDataType_t type);
// Does it know how to combine these?
[[nodiscard]] bool CanReduce(ncclDataType_t type, ncclRedOp_t op);

// Does the operation together with the other ranks; blocks.
[[nodiscard]] Outcome Perform(const Operation& operation, int rank, Mesh& mesh,
                              const Interrupt& interrupt, int* gone);
// Overwrites everything that the operation would have written.
void FillWithGarbage(const Operation& operation, int rank, int world_size);

// Puts the operation on its stream: it runs after those before it on the stream and after those
// before it on the communicator.
void PutOnStream(std::shared_ptr<Comm> comm, const Operation& operation, std::uint64_t ticket);

}  // namespace muster::gpu_double
