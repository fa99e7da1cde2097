// A communicator that takes memory of a HostDevice, around one that does not.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tests/support/host_device.h"
#include "worker/collective/communicator.h"

namespace muster {

// Threads: as Communicator.
class StraightCommunicator final : public Communicator {
 public:
  // Both must outlive it.
  StraightCommunicator(Communicator& base, Device& device)
      : base_(base), device_(device), stream_(device.MakeStream().value()) {}

  // How many buffers lay on the device.
  [[nodiscard]] int taken() const { return taken_; }

  [[nodiscard]] Rank rank() const override { return base_.rank(); }
  [[nodiscard]] std::int32_t world_size() const override { return base_.world_size(); }
  [[nodiscard]] std::string_view backend() const override { return "straight"; }
  [[nodiscard]] bool takes_device_memory() const override { return true; }

  Status AllReduce(std::span<std::byte> buffer, ElementType type, ReduceOp op) override {
    return InPlace(buffer, [&](auto bytes) { return base_.AllReduce(bytes, type, op); });
  }
  Status AllGather(std::span<std::byte> buffer, std::span<const std::int64_t> counts) override {
    return InPlace(buffer, [&](auto bytes) { return base_.AllGather(bytes, counts); });
  }
  Status Broadcast(std::span<std::byte> buffer, Rank root) override {
    return InPlace(buffer, [&](auto bytes) { return base_.Broadcast(bytes, root); });
  }
  Status Exchange(std::span<const std::span<const std::byte>> outgoing,
                  std::span<const std::span<std::byte>> incoming) override {
    std::vector<std::vector<std::byte>> copies;
    copies.reserve(2 * outgoing.size());  // spans of them are kept
    std::vector<std::span<const std::byte>> out(outgoing.begin(), outgoing.end());
    std::vector<std::span<std::byte>> in(incoming.begin(), incoming.end());
    for (auto& bytes : out) {
      if (Takes(bytes)) bytes = copies.emplace_back(Fetch(bytes));
    }
    for (auto& bytes : in) {
      if (Takes(bytes)) bytes = copies.emplace_back(bytes.size());
    }
    MUSTER_RETURN_IF_ERROR(base_.Exchange(out, in));
    for (std::size_t p = 0; p < in.size(); ++p) {
      if (in[p].data() != incoming[p].data()) Store(incoming[p], in[p]);
    }
    return {};
  }
  Status Send(std::span<const std::byte> buffer, Rank to) override {
    return base_.Send(buffer, to);
  }
  Status Recv(std::span<std::byte> buffer, Rank from) override { return base_.Recv(buffer, from); }
  Status Barrier() override { return base_.Barrier(); }
  void Abort() override { base_.Abort(); }
  Status AwaitAborted(Duration limit) override { return base_.AwaitAborted(limit); }
  [[nodiscard]] std::optional<Rank> failed_peer() const override { return base_.failed_peer(); }
  [[nodiscard]] std::uint64_t operations_begun() const override { return base_.operations_begun(); }

 private:
  bool Takes(std::span<const std::byte> bytes) {
    if (bytes.empty() || !device_.IsDeviceMemory(bytes.data())) return false;
    ++taken_;
    return true;
  }
  std::vector<std::byte> Fetch(std::span<const std::byte> bytes) {
    std::vector<std::byte> copy(bytes.size());
    stream_->Copy(copy.data(), bytes.data(), bytes.size());
    EXPECT_EQ(stream_->Wait(Duration::Seconds(1), nullptr), Status());
    return copy;
  }
  void Store(std::span<std::byte> to, std::span<const std::byte> from) {
    stream_->Copy(to.data(), from.data(), to.size());
    EXPECT_EQ(stream_->Wait(Duration::Seconds(1), nullptr), Status());
  }
  template <class Operation>
  Status InPlace(std::span<std::byte> buffer, const Operation& operation) {
    if (!Takes(buffer)) return operation(buffer);
    std::vector<std::byte> copy = Fetch(buffer);
    MUSTER_RETURN_IF_ERROR(operation(std::span<std::byte>(copy)));
    Store(buffer, copy);
    return {};
  }

  Communicator& base_;
  Device& device_;
  const std::unique_ptr<DeviceStream> stream_;
  int taken_ = 0;
};

}  // namespace muster
