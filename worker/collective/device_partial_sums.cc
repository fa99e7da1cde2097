#include "worker/collective/device_partial_sums.h"

#include <iterator>
#include <string>
#include <utility>

#include "protocol/check.h"
#include "worker/collective/reduction_tree.h"

namespace muster {

template <class T>
DevicePartialSums<T>::DevicePartialSums(std::shared_ptr<const DeviceMath> math, std::int64_t leaves,
                                        Range range, std::int64_t elements)
    : math_(std::move(math)),
      elements_(elements),
      stack_(leaves, range),
      cover_(CoverByNodes(leaves, range)) {
  MUSTER_CHECK(elements >= 0, "a vector has no fewer than 0 elements");
}

template <class T>
DeviceSpan<T> DevicePartialSums<T>::Part(std::size_t index, std::int64_t offset,
                                         std::size_t count) const {
  return buffers_[index].template as<T>().subspan(static_cast<std::size_t>(offset), count);
}

template <class T>
DeviceSpan<const T> DevicePartialSums<T>::values(std::size_t index) const {
  MUSTER_CHECK(index < cover_.size() && index < buffers_.size(), "this sum is not there yet");
  return Part(index, 0, static_cast<std::size_t>(elements_));
}

template <class T>
Status DevicePartialSums<T>::Add(DeviceStream& stream, std::int64_t leaf,
                                 DeviceSpan<const T> values) {
  MUSTER_RETURN_IF_ERROR(stack_.CheckTurn(leaf));
  if (static_cast<std::int64_t>(values.size()) != elements_) {
    return InvalidArgument("micro-batch " + std::to_string(leaf) + " has " +
                           std::to_string(values.size()) + " values instead of " +
                           std::to_string(elements_));
  }
  return AddPart(stream, leaf, 0, values);
}

template <class T>
Status DevicePartialSums<T>::AddPart(DeviceStream& stream, std::int64_t leaf, std::int64_t offset,
                                     DeviceSpan<const T> part) {
  MUSTER_RETURN_IF_ERROR(stack_.CheckTurn(leaf));
  const auto count = static_cast<std::int64_t>(part.size());
  if (offset < 0 || offset > elements_ || count > elements_ - offset) {
    return InvalidArgument("micro-batch " + std::to_string(leaf) + " has a part of " +
                           std::to_string(count) + " values at " + std::to_string(offset) +
                           ", beyond its " + std::to_string(elements_));
  }
  const std::int64_t end = offset + count;
  MUSTER_RETURN_IF_ERROR(CheckNew(leaf, offset, end));
  MUSTER_RETURN_IF_ERROR(PutFold(stream, offset, part));
  if (count > 0) {
    auto place = came_.emplace(offset, end).first;
    if (const auto after = std::next(place); after != came_.end() && after->first == end) {
      place->second = after->second;
      came_.erase(after);
    }
    if (place != came_.begin() && std::prev(place)->second == offset) {
      std::prev(place)->second = place->second;
      came_.erase(place);
    }
  }
  const bool all = elements_ == 0 || (!came_.empty() && came_.begin()->first == 0 &&
                                      came_.begin()->second == elements_);
  if (all) {
    stack_.Advance();
    came_.clear();
  }
  return {};
}

template <class T>
Status DevicePartialSums<T>::CheckNew(std::int64_t leaf, std::int64_t offset,
                                      std::int64_t end) const {
  const auto after = came_.lower_bound(end);  // the first that begins behind the part
  if (offset == end || after == came_.begin() || std::prev(after)->second <= offset) return {};
  return InvalidArgument("micro-batch " + std::to_string(leaf) + " has the part [" +
                         std::to_string(offset) + ", " + std::to_string(end) +
                         "), of which some came before");
}

template <class T>
Status DevicePartialSums<T>::PutFold(DeviceStream& stream, std::int64_t offset,
                                     DeviceSpan<const T> part) {
  const LeafStack::Fold fold = stack_.NextFold();
  if (fold.sum == buffers_.size()) {
    Result<DeviceMemory> memory =
        math_->device()->Allocate(static_cast<std::size_t>(elements_) * sizeof(T));
    MUSTER_RETURN_IF_ERROR(memory.status());
    buffers_.push_back(std::move(*memory));
  }
  const auto at = [&](std::size_t index) { return Part(index, offset, part.size()); };
  if (fold.opens) {
    stream.Copy(at(fold.sum).data(), part.data(), part.size_bytes());
  } else {
    math_->AddInto(stream, at(fold.sum), part);
  }
  for (std::size_t i = fold.sum; i > fold.sum - fold.merges; --i) {
    math_->AddInto(stream, at(i - 1), at(i));
  }
  return {};
}

template <class T>
bool DevicePartialSums<T>::complete(Range elements) const {
  MUSTER_CHECK(0 <= elements.lo && elements.lo <= elements.hi && elements.hi <= elements_,
               "elements that there are");
  if (complete()) return true;
  if (stack_.next() + 1 < stack_.range().hi) return false;
  const auto after = came_.upper_bound(elements.lo);
  if (after == came_.begin()) return elements.size() == 0;
  return std::prev(after)->second >= elements.hi || elements.size() == 0;
}

template <class T>
void DevicePartialSums<T>::Clear() {
  stack_.Clear();
  came_.clear();
}

template class DevicePartialSums<float>;
template class DevicePartialSums<double>;

}  // namespace muster
