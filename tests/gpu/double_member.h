// A rank of a communicator of the NCCL double, within a child of a test.
#pragma once

#include <nccl.h>
#include <signal.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/gpu/processes.h"

namespace muster::gpu_double {

inline void Ok(cudaError_t error) { REQUIRE(error == cudaSuccess); }

// One communicator, a stream, and a buffer of doubles to sum up. Its calls end the child when they
// fail; nothing is cleaned up.
class Member {
 public:
  static constexpr std::size_t kCount = 1000;

  // Begins to form a communicator of all ranks of the test: rank 0 makes the id and tells it to the
  // test, which passes it on.
  explicit Member(const Child& child) : Member(child.rank(), child.size(), IdFor(child)) {}

  Member(int rank, int size, const ncclUniqueId& id) : rank_(rank), size_(size) {
    Ok(cudaSetDevice(rank % 8));
    Ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    Ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    void* memory = nullptr;
    Ok(cudaMalloc(&memory, kCount * sizeof(double)));
    values = static_cast<double*>(memory);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    begun = ncclCommInitRankConfig(&comm, size, id, rank, &config);
  }

  static ncclUniqueId MakeId() {
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    return id;
  }
  static ncclUniqueId IdFor(const Child& child) {
    ncclUniqueId id;
    if (child.rank() == 0) {
      id = MakeId();
      child.Tell(std::string(id.internal, sizeof id.internal));
    } else {
      std::memcpy(id.internal, child.Await().data(), sizeof id.internal);
    }
    return id;
  }

  [[nodiscard]] ncclResult_t AsyncError() const {
    ncclResult_t error = ncclSuccess;
    REQUIRE(ncclCommGetAsyncError(comm, &error) == ncclSuccess);
    return error;
  }
  // Waits until the communicator is no longer in progress.
  [[nodiscard]] ncclResult_t Settle() const {
    ncclResult_t error = ncclInProgress;
    Until([&] { return (error = AsyncError()) != ncclInProgress; });
    return error;
  }
  void Form() const {
    REQUIRE(begun == ncclInProgress && comm != nullptr);
    REQUIRE(Settle() == ncclSuccess);
  }

  // Begins to sum rank + 1 over all ranks.
  ncclResult_t BeginSum() {
    const std::vector<double> own(kCount, rank_ + 1.0);
    Ok(cudaMemcpyAsync(values, own.data(), kCount * sizeof(double), cudaMemcpyHostToDevice,
                       stream));
    return ncclAllReduce(values, values, kCount, ncclFloat64, ncclSum, comm, stream);
  }
  // To be recorded once the sum is on its stream.
  void Record() const { Ok(cudaEventRecord(event, stream)); }
  [[nodiscard]] bool Passed() const { return cudaEventQuery(event) == cudaSuccess; }
  // Begins a sum that gets onto its stream; there it may fail at once.
  void StartSum() {
    REQUIRE(BeginSum() == ncclInProgress);
    static_cast<void>(Settle());
    Record();
  }
  // Each of the values, which have to be the same.
  [[nodiscard]] double Value() const {
    std::vector<double> seen(kCount);
    Ok(cudaMemcpyAsync(seen.data(), values, kCount * sizeof(double), cudaMemcpyDeviceToHost,
                       stream));
    for (const double value : seen) REQUIRE(value == seen[0] || seen[0] != seen[0]);
    return seen[0];
  }
  void Sum() {
    StartSum();
    Until([&] { return Passed(); });
    REQUIRE(Value() == size_ * (size_ + 1) / 2.0);
  }
  void Abort() const { REQUIRE(ncclCommAbort(comm) == ncclSuccess); }

  ncclComm_t comm = nullptr;
  ncclResult_t begun = ncclSuccess;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  double* values = nullptr;

 private:
  int rank_;
  int size_;
};

// Has the event passed over what an abort leaves, and not over the sum?
inline bool IsGarbage(double value) {
  unsigned char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  return bytes[0] == 0xab && bytes[7] == 0xab;
}

// All in one host, each on a device of its own.
inline const Variables kOneHost = {{"NCCL_HOSTID", "one-host"}};

}  // namespace muster::gpu_double
