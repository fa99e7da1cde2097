// The communicator over NCCL, between the GPUs of one generation.
//
// Spans may lie in the memory of its device or in the host's; host memory goes through pinned
// staging, piece by piece. NCCL's maximum and minimum do not pass on every NaN; kBitOr is
// kUnimplemented. Ranks that call different operations or sizes run into the progress deadline.
//
// All work is put on one stream and waited for by polling, so that an abort frees the training
// thread at once, whatever the device does. A world of one uses no NCCL.
// Threads: as in communicator.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker/collective/communicator.h"
#include "worker/collective/device.h"
#include "worker/collective/device_communicator.h"
#include "worker/collective/gpu_backend.h"
#include "worker/collective/nccl_handle.h"

namespace muster {

class NcclCommunicator final : public DeviceCommunicator {
 public:
  [[nodiscard]] static Result<std::shared_ptr<NcclCommunicator>> Make(
      std::shared_ptr<Device> device, NcclGroup group, NcclOptions options);
  // Aborts, if that was not done, and waits for it until the hard deadline.
  ~NcclCommunicator() override;

  Status Connect() override;

  [[nodiscard]] Rank rank() const override { return group_.rank; }
  [[nodiscard]] std::int32_t world_size() const override { return group_.world_size; }
  [[nodiscard]] std::string_view backend() const override { return "nccl"; }
  [[nodiscard]] bool takes_device_memory() const override { return true; }

  Status AllReduce(std::span<std::byte> buffer, ElementType type, ReduceOp op) override;
  Status AllGather(std::span<std::byte> buffer, std::span<const std::int64_t> counts) override;
  Status Broadcast(std::span<std::byte> buffer, Rank root) override;
  Status Exchange(std::span<const std::span<const std::byte>> outgoing,
                  std::span<const std::span<std::byte>> incoming) override;
  Status Send(std::span<const std::byte> buffer, Rank to) override;
  Status Recv(std::span<std::byte> buffer, Rank from) override;
  Status Barrier() override;

  [[nodiscard]] DeviceStream& stream() override { return *stream_; }
  Status PutExchange(std::span<const std::span<const std::byte>> outgoing,
                     std::span<const std::span<std::byte>> incoming) override;
  Status PutAllGather(std::span<std::byte> buffer, std::span<const std::int64_t> counts) override;
  Status Complete() override;

  void Abort() override;
  Status AwaitAborted(Duration limit) override;

  [[nodiscard]] bool stuck() const override;

  // NCCL does not say on whose account an operation failed.
  [[nodiscard]] std::optional<Rank> failed_peer() const override { return std::nullopt; }
  [[nodiscard]] std::uint64_t operations_begun() const override { return operations_.load(); }

 private:
  class Inside;
  using Outgoing = std::span<const std::span<const std::byte>>;
  using Incoming = std::span<const std::span<std::byte>>;

  NcclCommunicator(const NcclApi* api, std::shared_ptr<Device> device, NcclGroup group,
                   NcclOptions options, std::shared_ptr<DeviceStream> stream);

  // Runs `body` as the one call inside; keeps its failure for all later calls. `counts`: it is an
  // operation, which all ranks begin, or this rank's own waiting.
  Status Run(const std::function<Status()>& body, bool counts = true);
  // Makes all connections that operations will use.
  Status WarmUp();
  // Makes a call of NCCL and waits until the communicator is free for the next one.
  Status Issue(const char* what, const std::function<ncclResult_t(ncclComm_t)>& call);
  Status Settle();
  // Waits for all that was put on the stream.
  Status AwaitStream();
  [[nodiscard]] Duration limit() const;
  [[nodiscard]] cudaStream_t native() const { return static_cast<cudaStream_t>(stream_->native()); }

  Status AllReducePiece(std::byte* data, std::size_t bytes, ElementType type, ReduceOp op);
  Status BroadcastPiece(std::byte* data, std::size_t bytes, Rank root);
  Status GatherParts(std::byte* data, std::span<const std::int64_t> counts);
  // One round of an exchange: the pieces of all messages that begin `offset` bytes into them.
  Status ExchangeRound(Outgoing outgoing, Incoming incoming, std::size_t offset);
  Status ExchangeDevice(Outgoing outgoing, Incoming incoming);
  // Calls `piece` on device memory for each part of a host buffer; `in` and `out`: is the part
  // copied to the device before, and back after?
  Status ThroughStaging(std::span<std::byte> buffer, std::size_t element, bool in, bool out,
                        const std::function<Status(std::byte*, std::size_t)>& piece);
  Status ReserveStaging(std::size_t bytes);
  [[nodiscard]] bool OnDevice(const void* address) const {
    return device_->IsDeviceMemory(address);
  }
  [[nodiscard]] std::size_t piece_bytes() const;

  const NcclApi* const api_;
  const std::shared_ptr<Device> device_;
  const NcclGroup group_;
  const NcclOptions options_;
  const std::string nccl_name_;  // for as long as NCCL may look at it
  const std::shared_ptr<DeviceStream> stream_;
  NcclHandle handle_;  // after what its guard uses
  std::atomic<std::uint64_t> operations_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable left_;
  bool inside_ = false;  // guarded by mutex_

  // Belongs to the call that is inside.
  bool connected_ = false;
  Status failed_;
  DeviceMemory staging_host_;
  DeviceMemory staging_device_;
};

}  // namespace muster
