// What the ranks send each other: gathering, and messages between pairs.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "worker/collective/nccl_api.h"
#include "worker/collective/nccl_communicator.h"

namespace muster {
namespace {

// The part of a message that its round moves.
template <class Byte>
std::span<Byte> PieceOf(std::span<Byte> message, std::size_t offset, std::size_t most) {
  if (offset >= message.size()) return {};
  return message.subspan(offset, std::min(most, message.size() - offset));
}

template <class Spans>
std::size_t LongestOf(const Spans& messages) {
  std::size_t longest = 0;
  for (const auto& message : messages) longest = std::max(longest, message.size());
  return longest;
}

}  // namespace

Status NcclCommunicator::GatherParts(std::byte* data, std::span<const std::int64_t> counts) {
  const bool even =
      std::ranges::all_of(counts, [&](std::int64_t count) { return count == counts.front(); });
  const auto first = static_cast<std::size_t>(counts.front());
  if (even) {
    if (first == 0) return {};
    return Issue("all-gather", [&](ncclComm_t communicator) {
      return api_->AllGather(data + first * static_cast<std::size_t>(group_.rank.value()), data,
                             first, ncclUint8, communicator, native());
    });
  }
  return Issue("all-gather of uneven parts", [&](ncclComm_t communicator) {
    ncclResult_t result = api_->GroupStart();
    std::byte* part = data;
    for (std::size_t root = 0; root < counts.size(); ++root) {
      const auto count = static_cast<std::size_t>(counts[root]);
      if (count > 0 && (result == ncclSuccess || result == ncclInProgress)) {
        result = api_->Broadcast(part, part, count, ncclUint8, static_cast<int>(root), communicator,
                                 native());
      }
      part += count;
    }
    const ncclResult_t ended = api_->GroupEnd();
    return result == ncclSuccess || result == ncclInProgress ? ended : result;
  });
}

Status NcclCommunicator::PutAllGather(std::span<std::byte> buffer,
                                      std::span<const std::int64_t> counts) {
  return Run([&]() -> Status {
    if (group_.world_size == 1 || buffer.empty()) return {};
    return GatherParts(buffer.data(), counts);
  });
}

Status NcclCommunicator::AllGather(std::span<std::byte> buffer,
                                   std::span<const std::int64_t> counts) {
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (static_cast<std::int32_t>(counts.size()) != group_.world_size ||
      total != static_cast<std::int64_t>(buffer.size())) {
    return InvalidArgument(
        fmt::format("{} parts of {} bytes together for a buffer of {} and {} ranks", counts.size(),
                    total, buffer.size(), group_.world_size));
  }
  if (group_.world_size == 1 || buffer.empty()) return Run([] { return Status(); });
  if (OnDevice(buffer.data())) {
    return Run([&]() -> Status {
      MUSTER_RETURN_IF_ERROR(GatherParts(buffer.data(), counts));
      return AwaitStream();
    });
  }
  // On the host it is the exchange of everybody's part with everybody: the same messages in the
  // same pieces on both sides.
  std::vector<std::span<std::byte>> incoming;
  std::size_t at = 0;
  for (const std::int64_t count : counts) {
    incoming.push_back(buffer.subspan(at, static_cast<std::size_t>(count)));
    at += static_cast<std::size_t>(count);
  }
  const std::span<std::byte> own = incoming[static_cast<std::size_t>(group_.rank.value())];
  std::vector<std::span<const std::byte>> outgoing(counts.size(), own);
  incoming[static_cast<std::size_t>(group_.rank.value())] = {};
  outgoing[static_cast<std::size_t>(group_.rank.value())] = {};
  return Exchange(outgoing, incoming);
}

Status NcclCommunicator::ExchangeRound(Outgoing outgoing, Incoming incoming, std::size_t offset) {
  const std::size_t most = piece_bytes();
  return Issue("exchange", [&](ncclComm_t communicator) {
    ncclResult_t result = api_->GroupStart();
    const auto good = [&] { return result == ncclSuccess || result == ncclInProgress; };
    for (std::size_t peer = 0; peer < outgoing.size(); ++peer) {
      const auto out = PieceOf(outgoing[peer], offset, most);
      if (!out.empty() && good()) {
        result = api_->Send(out.data(), out.size(), ncclUint8, static_cast<int>(peer), communicator,
                            native());
      }
      const auto in = PieceOf(incoming[peer], offset, most);
      if (!in.empty() && good()) {
        result = api_->Recv(in.data(), in.size(), ncclUint8, static_cast<int>(peer), communicator,
                            native());
      }
    }
    const ncclResult_t ended = api_->GroupEnd();
    return good() ? ended : result;
  });
}

Status NcclCommunicator::ExchangeDevice(Outgoing outgoing, Incoming incoming) {
  const std::size_t longest = std::max(LongestOf(outgoing), LongestOf(incoming));
  for (std::size_t offset = 0; offset < longest; offset += piece_bytes()) {
    MUSTER_RETURN_IF_ERROR(ExchangeRound(outgoing, incoming, offset));
  }
  return {};
}

Status NcclCommunicator::PutExchange(Outgoing outgoing, Incoming incoming) {
  return Run([&]() -> Status {
    const auto self = static_cast<std::size_t>(group_.rank.value());
    stream_->Copy(incoming[self].data(), outgoing[self].data(), outgoing[self].size());
    if (group_.world_size == 1) return stream_->status();
    std::vector<std::span<const std::byte>> out(outgoing.begin(), outgoing.end());
    std::vector<std::span<std::byte>> in(incoming.begin(), incoming.end());
    out[self] = {};
    in[self] = {};
    return ExchangeDevice(out, in);
  });
}

Status NcclCommunicator::Complete() {
  return Run([this] { return AwaitStream(); }, /*counts=*/false);
}

Status NcclCommunicator::Exchange(Outgoing outgoing, Incoming incoming) {
  const auto world = static_cast<std::size_t>(group_.world_size);
  const auto self = static_cast<std::size_t>(group_.rank.value());
  if (outgoing.size() != world || incoming.size() != world ||
      outgoing[self].size() != incoming[self].size()) {
    return InvalidArgument(fmt::format("an exchange of {} and {} messages between {} ranks",
                                       outgoing.size(), incoming.size(), world));
  }
  return Run([&]() -> Status {
    if (!outgoing[self].empty()) {
      stream_->Copy(incoming[self].data(), outgoing[self].data(), outgoing[self].size());
    }
    // Host pieces of each round lie one behind another in the staging.
    const std::size_t most = piece_bytes();
    const std::size_t longest = std::max(LongestOf(outgoing), LongestOf(incoming));
    std::vector<std::span<const std::byte>> out(world);
    std::vector<std::span<std::byte>> in(world);
    struct Landing {
      std::span<std::byte> to;
      std::size_t at;
    };
    for (std::size_t offset = 0; world > 1 && offset < longest; offset += most) {
      std::size_t need = 0;
      std::vector<Landing> landings;
      const auto reserve = [&](std::size_t bytes) { return std::exchange(need, need + bytes); };
      std::vector<std::pair<std::size_t, std::size_t>> out_at;  // (peer, place)
      std::vector<std::pair<std::size_t, std::size_t>> in_at;
      for (std::size_t peer = 0; peer < world; ++peer) {
        out[peer] =
            peer == self ? std::span<const std::byte>() : PieceOf(outgoing[peer], offset, most);
        in[peer] = peer == self ? std::span<std::byte>() : PieceOf(incoming[peer], offset, most);
        if (!out[peer].empty() && !OnDevice(out[peer].data())) {
          out_at.emplace_back(peer, reserve(out[peer].size()));
        }
        if (!in[peer].empty() && !OnDevice(in[peer].data())) {
          in_at.emplace_back(peer, reserve(in[peer].size()));
        }
      }
      MUSTER_RETURN_IF_ERROR(ReserveStaging(need));
      for (const auto& [peer, at] : out_at) {
        std::memcpy(staging_host_.data() + at, out[peer].data(), out[peer].size());
        stream_->Copy(staging_device_.data() + at, staging_host_.data() + at, out[peer].size());
        out[peer] = {staging_device_.data() + at, out[peer].size()};
      }
      for (const auto& [peer, at] : in_at) {
        landings.push_back({in[peer], at});
        in[peer] = {staging_device_.data() + at, in[peer].size()};
      }
      if (LongestOf(out) == 0 && LongestOf(in) == 0) continue;
      MUSTER_RETURN_IF_ERROR(ExchangeRound(out, in, 0));
      for (const Landing& landing : landings) {
        stream_->Copy(staging_host_.data() + landing.at, staging_device_.data() + landing.at,
                      landing.to.size());
      }
      if (need == 0) continue;  // nothing of the staging is used again
      MUSTER_RETURN_IF_ERROR(AwaitStream());
      for (const Landing& landing : landings) {
        std::memcpy(landing.to.data(), staging_host_.data() + landing.at, landing.to.size());
      }
    }
    return AwaitStream();
  });
}

Status NcclCommunicator::Send(std::span<const std::byte> buffer, Rank to) {
  if (to == group_.rank || to.value() < 0 || to.value() >= group_.world_size) {
    return InvalidArgument(
        fmt::format("a message to rank {} of {}", to.value(), group_.world_size));
  }
  std::vector<std::span<const std::byte>> outgoing(static_cast<std::size_t>(group_.world_size));
  const std::vector<std::span<std::byte>> incoming(static_cast<std::size_t>(group_.world_size));
  outgoing[static_cast<std::size_t>(to.value())] = buffer;
  return Exchange(outgoing, incoming);
}

Status NcclCommunicator::Recv(std::span<std::byte> buffer, Rank from) {
  if (from == group_.rank || from.value() < 0 || from.value() >= group_.world_size) {
    return InvalidArgument(
        fmt::format("a message from rank {} of {}", from.value(), group_.world_size));
  }
  const std::vector<std::span<const std::byte>> outgoing(
      static_cast<std::size_t>(group_.world_size));
  std::vector<std::span<std::byte>> incoming(static_cast<std::size_t>(group_.world_size));
  incoming[static_cast<std::size_t>(from.value())] = buffer;
  return Exchange(outgoing, incoming);
}

}  // namespace muster
