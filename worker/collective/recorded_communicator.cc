#include "worker/collective/recorded_communicator.h"

#include <utility>

#include "protocol/check.h"

namespace muster {

RecordedCommunicator::RecordedCommunicator(std::shared_ptr<Communicator> inner, FlightRing& ring,
                                           Generation generation, Lineage lineage)
    : inner_(std::move(inner)), ring_(ring) {
  MUSTER_CHECK(inner_ != nullptr, "there must be a communicator to record");
  ring_.StartGeneration(generation, lineage, inner_->rank(), inner_->world_size());
}

Status RecordedCommunicator::AllReduce(std::span<std::byte> buffer, ElementType type, ReduceOp op) {
  return Recorded(FlightKind::kAllReduce, buffer.size(), Rank(-1),
                  [&] { return inner_->AllReduce(buffer, type, op); });
}

Status RecordedCommunicator::AllGather(std::span<std::byte> buffer,
                                       std::span<const std::int64_t> counts) {
  return Recorded(FlightKind::kAllGather, buffer.size(), Rank(-1),
                  [&] { return inner_->AllGather(buffer, counts); });
}

Status RecordedCommunicator::Broadcast(std::span<std::byte> buffer, Rank root) {
  return Recorded(FlightKind::kBroadcast, buffer.size(), root,
                  [&] { return inner_->Broadcast(buffer, root); });
}

Status RecordedCommunicator::Exchange(std::span<const std::span<const std::byte>> outgoing,
                                      std::span<const std::span<std::byte>> incoming) {
  std::size_t bytes = 0;
  for (const std::span<const std::byte> part : outgoing) bytes += part.size();
  return Recorded(FlightKind::kExchange, bytes, Rank(-1),
                  [&] { return inner_->Exchange(outgoing, incoming); });
}

Status RecordedCommunicator::Send(std::span<const std::byte> buffer, Rank to) {
  return Recorded(FlightKind::kSend, buffer.size(), to, [&] { return inner_->Send(buffer, to); });
}

Status RecordedCommunicator::Recv(std::span<std::byte> buffer, Rank from) {
  return Recorded(FlightKind::kRecv, buffer.size(), from,
                  [&] { return inner_->Recv(buffer, from); });
}

Status RecordedCommunicator::Barrier() {
  return Recorded(FlightKind::kBarrier, 0, Rank(-1), [&] { return inner_->Barrier(); });
}

}  // namespace muster
