// A communicator that writes each of its operations down in the flight ring, and hands it on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "protocol/ids.h"
#include "worker/collective/communicator.h"
#include "worker/collective/flight_ring.h"

namespace muster {

// Everything is as communicator.h says of the inner one. An operation that the inner one refuses
// counts as well, with the outcome failed.
class RecordedCommunicator final : public Communicator {
 public:
  // Opens the generation in the ring, at the inner one's rank and world size. `ring` must outlive
  // the last operation, and is written by the thread that makes it; an inactive one records
  // nothing. REQUIRES: inner is not null; called by the thread that writes to the ring
  RecordedCommunicator(std::shared_ptr<Communicator> inner, FlightRing& ring, Generation generation,
                       Lineage lineage = {});

  [[nodiscard]] Rank rank() const override { return inner_->rank(); }
  [[nodiscard]] std::int32_t world_size() const override { return inner_->world_size(); }
  [[nodiscard]] std::string_view backend() const override { return inner_->backend(); }
  [[nodiscard]] bool takes_device_memory() const override { return inner_->takes_device_memory(); }

  Status AllReduce(std::span<std::byte> buffer, ElementType type, ReduceOp op) override;
  Status AllGather(std::span<std::byte> buffer, std::span<const std::int64_t> counts) override;
  Status Broadcast(std::span<std::byte> buffer, Rank root) override;
  // Its bytes are those that this rank sends, and so need not be the same on all ranks.
  Status Exchange(std::span<const std::span<const std::byte>> outgoing,
                  std::span<const std::span<std::byte>> incoming) override;
  Status Send(std::span<const std::byte> buffer, Rank to) override;
  Status Recv(std::span<std::byte> buffer, Rank from) override;
  Status Barrier() override;

  void Abort() override { inner_->Abort(); }
  Status AwaitAborted(Duration limit) override { return inner_->AwaitAborted(limit); }
  [[nodiscard]] bool stuck() const override { return inner_->stuck(); }
  [[nodiscard]] std::optional<Rank> failed_peer() const override { return inner_->failed_peer(); }
  [[nodiscard]] std::uint64_t operations_begun() const override {
    return inner_->operations_begun();
  }

 private:
  template <class Operation>
  Status Recorded(FlightKind kind, std::size_t bytes, Rank peer, const Operation& operation) {
    const FlightRing::Ticket ticket = ring_.Begin(kind, static_cast<std::int64_t>(bytes), peer);
    Status status = operation();
    ring_.Done(ticket, status.ok());
    return status;
  }

  const std::shared_ptr<Communicator> inner_;
  FlightRing& ring_;
};

}  // namespace muster
