#include "tests/gpu/double/double_collectives.h"

#include <algorithm>
#include <cstring>

namespace muster::gpu_double {
namespace {

constexpr int kGarbage = 0xab;

struct Slice {
  std::size_t at = 0;
  std::size_t size = 0;
};

// Part `rank` of `count` elements in `parts` parts.
Slice Cut(std::size_t count, std::size_t rank, std::size_t parts) {
  const std::size_t low = count * rank / parts;
  return {low, count * (rank + 1) / parts - low};
}

template <class T>
T Combined(T a, T b, ncclRedOp_t op) {
  switch (op) {
    case ncclMax: return std::max(a, b);
    case ncclMin: return std::min(a, b);
    case ncclProd: return static_cast<T>(a * b);
    default: return static_cast<T>(a + b);
  }
}

template <class T>
void CombineAs(std::byte* into, const std::byte* from, std::size_t count, ncclRedOp_t op) {
  for (std::size_t i = 0; i < count; ++i) {
    T a;
    T b;
    std::memcpy(&a, into + i * sizeof(T), sizeof(T));
    std::memcpy(&b, from + i * sizeof(T), sizeof(T));
    a = Combined(a, b, op);
    std::memcpy(into + i * sizeof(T), &a, sizeof(T));
  }
}

void Combine(std::byte* into, const std::byte* from, std::size_t count, ncclDataType_t type,
             ncclRedOp_t op) {
  switch (type) {
    case ncclInt8: return CombineAs<std::int8_t>(into, from, count, op);
    case ncclUint8: return CombineAs<std::uint8_t>(into, from, count, op);
    case ncclInt32: return CombineAs<std::int32_t>(into, from, count, op);
    case ncclUint32: return CombineAs<std::uint32_t>(into, from, count, op);
    case ncclInt64: return CombineAs<std::int64_t>(into, from, count, op);
    case ncclUint64: return CombineAs<std::uint64_t>(into, from, count, op);
    case ncclFloat32: return CombineAs<float>(into, from, count, op);
    case ncclFloat64: return CombineAs<double>(into, from, count, op);
    default: break;
  }
}

// One operation's way through a mesh.
class Performance {
 public:
  Performance(const Operation& operation, int rank, Mesh& mesh, const Interrupt& interrupt,
              int* gone)
      : operation_(operation),
        rank_(static_cast<std::size_t>(rank)),
        size_(mesh.links().size()),
        element_(SizeOf(operation.type)),
        mesh_(mesh),
        interrupt_(interrupt),
        gone_(gone),
        out_(size_),
        in_(size_) {}

  Outcome Run() {
    switch (operation_.kind) {
      case Kind::kAllReduce: return AllReduce();
      case Kind::kBroadcast: return Broadcast();
      case Kind::kAllGather: return AllGather();
      case Kind::kReduceScatter: return ReduceScatter();
      case Kind::kPairs: break;
    }
    return Pairs();
  }

 private:
  Label LabelOf(std::size_t bytes, std::uint32_t phase = 0) const {
    const bool rooted = operation_.kind == Kind::kBroadcast;
    return {static_cast<std::uint32_t>(operation_.kind) + 16 * phase, operation_.sequence,
            static_cast<std::uint32_t>(operation_.type),
            static_cast<std::uint32_t>(rooted ? operation_.root : static_cast<int>(operation_.op)),
            bytes};
  }
  void Give(std::size_t peer, const std::byte* data, std::size_t bytes, std::uint32_t phase = 0) {
    if (peer != rank_) out_[peer].push_back({LabelOf(bytes, phase), data});
  }
  void Take(std::size_t peer, std::byte* data, std::size_t bytes, std::uint32_t phase = 0) {
    if (peer != rank_) in_[peer].push_back({LabelOf(bytes, phase), data});
  }
  Outcome Exchange() {
    std::vector<std::vector<Outgoing>> out(size_);
    std::vector<std::vector<Incoming>> in(size_);
    out.swap(out_);
    in.swap(in_);
    return mesh_.Exchange(std::move(out), std::move(in), interrupt_, gone_);
  }

  // Everyone's `own` of what lies at `offset_of(rank)` in their `send`, combined in rank order.
  template <class OffsetOf, class SizeOfSlice>
  Outcome Reduce(OffsetOf offset_of, SizeOfSlice size_of) {
    const std::size_t own = size_of(rank_) * element_;
    std::vector<std::byte> received(own * size_);
    for (std::size_t peer = 0; peer < size_; ++peer) {
      Give(peer, operation_.send + offset_of(peer) * element_, size_of(peer) * element_);
      Take(peer, received.data() + peer * own, own);
    }
    std::copy_n(operation_.send + offset_of(rank_) * element_, own, received.data() + rank_ * own);
    const Outcome outcome = Exchange();
    if (outcome != Outcome::kDone) return outcome;
    for (std::size_t peer = 1; peer < size_; ++peer) {
      Combine(received.data(), received.data() + peer * own, size_of(rank_), operation_.type,
              operation_.op);
    }
    received.resize(own);
    reduced_ = std::move(received);
    return Outcome::kDone;
  }

  Outcome AllReduce() {
    const auto slice = [&](std::size_t rank) { return Cut(operation_.count, rank, size_); };
    const Outcome outcome = Reduce([&](std::size_t rank) { return slice(rank).at; },
                                   [&](std::size_t rank) { return slice(rank).size; });
    if (outcome != Outcome::kDone) return outcome;
    for (std::size_t peer = 0; peer < size_; ++peer) {
      Give(peer, reduced_.data(), reduced_.size(), 1);
      Take(peer, operation_.receive + slice(peer).at * element_, slice(peer).size * element_, 1);
    }
    std::ranges::copy(reduced_, operation_.receive + slice(rank_).at * element_);
    return Exchange();
  }

  Outcome ReduceScatter() {
    const Outcome outcome = Reduce([&](std::size_t rank) { return rank * operation_.count; },
                                   [&](std::size_t) { return operation_.count; });
    if (outcome == Outcome::kDone) std::ranges::copy(reduced_, operation_.receive);
    return outcome;
  }

  Outcome Broadcast() {
    const std::size_t bytes = operation_.count * element_;
    const auto root = static_cast<std::size_t>(operation_.root);
    if (rank_ == root) {
      std::memmove(operation_.receive, operation_.send, bytes);
      for (std::size_t peer = 0; peer < size_; ++peer) Give(peer, operation_.send, bytes);
    } else {
      Take(root, operation_.receive, bytes);
    }
    return Exchange();
  }

  Outcome AllGather() {
    const std::size_t bytes = operation_.count * element_;
    std::memmove(operation_.receive + rank_ * bytes, operation_.send, bytes);
    for (std::size_t peer = 0; peer < size_; ++peer) {
      Give(peer, operation_.receive + rank_ * bytes, bytes);
      Take(peer, operation_.receive + peer * bytes, bytes);
    }
    return Exchange();
  }

  Outcome Pairs() {
    // To itself a rank copies: the n-th send to the n-th receive.
    std::vector<const Pair*> own_sends;
    std::size_t own_receives = 0;
    for (const Pair& pair : operation_.pairs) {
      if (pair.sends && static_cast<std::size_t>(pair.peer) == rank_) own_sends.push_back(&pair);
    }
    for (const Pair& pair : operation_.pairs) {
      const auto peer = static_cast<std::size_t>(pair.peer);
      if (peer != rank_) {
        pair.sends ? Give(peer, pair.data, pair.bytes) : Take(peer, pair.data, pair.bytes);
      } else if (!pair.sends && own_receives < own_sends.size()) {
        std::memmove(pair.data, own_sends[own_receives++]->data, pair.bytes);
      }
    }
    return Exchange();
  }

  const Operation& operation_;
  const std::size_t rank_;
  const std::size_t size_;
  const std::size_t element_;
  Mesh& mesh_;
  const Interrupt& interrupt_;
  int* const gone_;
  std::vector<std::vector<Outgoing>> out_;
  std::vector<std::vector<Incoming>> in_;
  std::vector<std::byte> reduced_;
};

}  // namespace

std::size_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
    default: return 0;
  }
}

bool CanReduce(ncclDataType_t type, ncclRedOp_t op) {
  return SizeOf(type) != 0 && (op == ncclSum || op == ncclProd || op == ncclMax || op == ncclMin);
}

Outcome Perform(const Operation& operation, int rank, Mesh& mesh, const Interrupt& interrupt,
                int* gone) {
  return Performance(operation, rank, mesh, interrupt, gone).Run();
}

void FillWithGarbage(const Operation& operation, int rank, int world_size) {
  const std::size_t bytes = operation.count * SizeOf(operation.type);
  switch (operation.kind) {
    case Kind::kBroadcast:
      if (operation.root == rank) return;
      [[fallthrough]];
    case Kind::kAllReduce:
    case Kind::kReduceScatter: std::memset(operation.receive, kGarbage, bytes); return;
    case Kind::kAllGather:
      std::memset(operation.receive, kGarbage, bytes * static_cast<std::size_t>(world_size));
      return;
    case Kind::kPairs:
      for (const Pair& pair : operation.pairs) {
        if (!pair.sends) std::memset(pair.data, kGarbage, pair.bytes);
      }
  }
}

}  // namespace muster::gpu_double
