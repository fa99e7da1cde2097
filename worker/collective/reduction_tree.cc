#include "worker/collective/reduction_tree.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

#include "protocol/check.h"
#include "worker/collective/block_sums.h"
#include "worker/collective/reduce.h"
#include "worker/collective/tree_plan.h"

namespace muster {
namespace {

// How many bytes of every leaf sum are worked on at a time: enough to keep the links busy, little
// enough to stay in the cache.
constexpr std::int64_t kTileBytes = 4 * 1024 * 1024;

void Cover(Range node, Range range, std::vector<Range>& nodes) {
  if (node.hi <= range.lo || range.hi <= node.lo) return;
  if (range.lo <= node.lo && node.hi <= range.hi) {
    nodes.push_back(node);
    return;
  }
  const std::int64_t split = SplitOf(node);
  Cover({node.lo, split}, range, nodes);
  Cover({split, node.hi}, range, nodes);
}

std::string RangeText(Range range) {
  return "[" + std::to_string(range.lo) + ", " + std::to_string(range.hi) + ")";
}

// One call of ReduceTree, tile after tile.
template <class T>
class TreeReducer {
 public:
  TreeReducer(Communicator& communicator, TreePlan plan, const PartialSums<T>& partials)
      : communicator_(communicator),
        partials_(partials),
        size_(communicator.world_size()),
        rank_(communicator.rank().value()),
        plan_(std::move(plan)) {}

  // The elements `tile` of the result.
  Status Reduce(Range tile, std::span<T> result) {
    const auto slice = [&](std::int64_t rank) {
      const Range cut = EvenCut(tile.size(), rank, size_);
      return Range{tile.lo + cut.lo, tile.lo + cut.hi};
    };
    const std::int64_t held = plan_.nodes_of[static_cast<std::size_t>(rank_)];
    const std::int64_t own_size = slice(rank_).size();
    packed_.resize(static_cast<std::size_t>(held * tile.size()));
    received_.resize(static_cast<std::size_t>(plan_.slots * own_size));
    std::vector<std::span<const std::byte>> outgoing;
    std::vector<std::span<std::byte>> incoming;
    std::vector<std::int64_t> counts;
    T* out = packed_.data();
    T* in = received_.data();
    for (std::int64_t peer = 0; peer < size_; ++peer) {
      const Range wanted = slice(peer);
      outgoing.push_back(std::as_bytes(Pack(wanted, held, out)));
      const auto size =
          static_cast<std::size_t>(plan_.nodes_of[static_cast<std::size_t>(peer)] * own_size);
      incoming.push_back(std::as_writable_bytes(std::span<T>(in, size)));
      in += size;
      counts.push_back(wanted.size() * static_cast<std::int64_t>(sizeof(T)));
    }
    MUSTER_RETURN_IF_ERROR(communicator_.Exchange(outgoing, incoming));
    // Slots are numbered rank by rank, node by node: just as they lie in `received_`.
    for (const auto& [into, from] : plan_.additions)
      AddInto(Slot(into, own_size), Slot(from, own_size));
    const std::span<T> part =
        result.subspan(static_cast<std::size_t>(tile.lo), static_cast<std::size_t>(tile.size()));
    std::ranges::copy(Slot(0, own_size), part.begin() + (slice(rank_).lo - tile.lo));
    return communicator_.AllGather(std::as_writable_bytes(part), counts);
  }

 private:
  // The values of all own nodes for the elements `wanted`, one node behind another. One node needs
  // no copy.
  std::span<const T> Pack(Range wanted, std::int64_t held, T*& out) {
    const auto offset = static_cast<std::size_t>(wanted.lo);
    const auto size = static_cast<std::size_t>(wanted.size());
    if (held == 1) return partials_.values(0).subspan(offset, size);
    T* const begin = out;
    for (std::size_t i = 0; i < static_cast<std::size_t>(held); ++i) {
      out = std::ranges::copy(partials_.values(i).subspan(offset, size), out).out;
    }
    return {begin, out};
  }

  std::span<T> Slot(std::size_t index, std::int64_t slice_size) {
    const auto size = static_cast<std::size_t>(slice_size);
    return std::span<T>(received_).subspan(index * size, size);
  }

  Communicator& communicator_;
  const PartialSums<T>& partials_;
  const std::int64_t size_;
  const std::int64_t rank_;
  const TreePlan plan_;
  std::vector<T> packed_;    // what goes out
  std::vector<T> received_;  // the slice of every node of every rank
};

}  // namespace

std::int64_t SplitOf(Range node) {
  MUSTER_CHECK(node.size() >= 2, "a leaf does not split");
  return node.lo +
         static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(node.size() - 1)));
}

std::vector<Range> CoverByNodes(std::int64_t leaves, Range range) {
  std::vector<Range> nodes;
  Cover({0, leaves}, range, nodes);
  return nodes;
}

template <class T>
PartialSums<T>::PartialSums(std::int64_t leaves, Range range, std::int64_t elements)
    : elements_(elements), stack_(leaves, range) {
  MUSTER_CHECK(elements >= 0, "a vector has no fewer than 0 elements");
}

template <class T>
std::span<T> PartialSums<T>::Values(std::size_t index) const {
  return {buffers_[index].get(), static_cast<std::size_t>(elements_)};
}

template <class T>
std::span<const T> PartialSums<T>::values(std::size_t index) const {
  return Values(index);
}

template <class T>
Status PartialSums<T>::Add(std::int64_t leaf, std::span<const T> values) {
  MUSTER_RETURN_IF_ERROR(stack_.CheckTurn(leaf));
  if (static_cast<std::int64_t>(values.size()) != elements_) {
    return InvalidArgument("micro-batch " + std::to_string(leaf) + " has " +
                           std::to_string(values.size()) + " values instead of " +
                           std::to_string(elements_));
  }
  const LeafStack::Fold fold = stack_.NextFold();
  if (fold.opens) {
    if (buffers_.size() == fold.sum) {
      buffers_.push_back(std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(elements_)));
    }
    std::ranges::copy(values, Values(fold.sum).begin());
  } else {
    AddInto(Values(fold.sum), values);
  }
  for (std::size_t i = fold.sum; i > fold.sum - fold.merges; --i) AddInto(Values(i - 1), Values(i));
  stack_.Advance();
  return {};
}

template <class T>
void PartialSums<T>::Clear() {
  stack_.Clear();
}

template <class T>
Status ReduceTree(Communicator& communicator, std::span<const Range> ranges,
                  const PartialSums<T>& partials, std::span<T> result) {
  if (static_cast<std::int32_t>(ranges.size()) != communicator.world_size()) {
    return InvalidArgument(std::to_string(ranges.size()) + " ranges of leaves for a world of " +
                           std::to_string(communicator.world_size()));
  }
  Result<TreePlan> plan =
      TreePlan::Of(partials.leaves(), ranges, communicator.rank().value(), partials.range());
  if (!plan.ok()) return plan.status();
  if (!partials.complete()) {
    return FailedPrecondition("not all micro-batches of " + RangeText(partials.range()) +
                              " have been added");
  }
  const std::int64_t elements = partials.elements();
  if (static_cast<std::int64_t>(result.size()) != elements) {
    return InvalidArgument("a result of " + std::to_string(result.size()) + " values for sums of " +
                           std::to_string(elements));
  }
  TreeReducer<T> reducer(communicator, std::move(*plan), partials);
  const std::int64_t tile = kTileBytes / static_cast<std::int64_t>(sizeof(T));
  std::int64_t done = 0;
  do {  // at least once: an empty sum is a meeting of all ranks too
    const std::int64_t end = std::min(done + tile, elements);
    MUSTER_RETURN_IF_ERROR(reducer.Reduce({done, end}, result));
    done = end;
  } while (done < elements);
  return {};
}

double NormSquared(std::span<const float> values) {
  BlockSums sums;
  for (std::size_t start = 0; start < values.size(); start += kSumBlock) {
    const std::span<const float> block =
        values.subspan(start, std::min(kSumBlock, values.size() - start));
    // Lanes that do not depend on each other, so that the loop becomes vector instructions without
    // changing its result.
    std::array<double, kSumLanes> lanes{};
    std::size_t i = 0;
    for (; i + kSumLanes <= block.size(); i += kSumLanes) {
      for (std::size_t lane = 0; lane < kSumLanes; ++lane) {
        const auto value = static_cast<double>(block[i + lane]);
        lanes[lane] += value * value;
      }
    }
    for (std::size_t lane = 0; i < block.size(); ++i, ++lane) {
      const auto value = static_cast<double>(block[i]);
      lanes[lane] += value * value;
    }
    sums.Add(((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
             ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7])));
  }
  return sums.Total();
}

template class PartialSums<float>;
template class PartialSums<double>;
template Status ReduceTree(Communicator&, std::span<const Range>, const PartialSums<float>&,
                           std::span<float>);
template Status ReduceTree(Communicator&, std::span<const Range>, const PartialSums<double>&,
                           std::span<double>);

}  // namespace muster
