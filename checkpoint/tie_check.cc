#include "checkpoint/tie_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "checkpoint/format.h"
#include "protocol/check.h"

namespace muster::checkpoint {
namespace {

constexpr std::int64_t kSliceBytes = std::int64_t{16} << 20U;

std::size_t IndexOf(const CheckpointRecord& record, const std::string& name) {
  const auto it = std::ranges::find(record.tensors, name, &TensorSpec::name);
  MUSTER_CHECK(it != record.tensors.end(), "a tie is of tensors of the record");
  return static_cast<std::size_t>(it - record.tensors.begin());
}

// The elements [begin, end) of the tensor, in row-major order.
Status LoadSlice(FileSystem& fs, const std::string& root, const CheckpointRecord& record,
                 std::size_t tensor, const Range& elements, std::span<std::byte> into,
                 const ReadOptions& options) {
  std::vector<WantedBox> wanted;
  const TensorSpec& spec = record.tensors[tensor];
  for (const Box& box : FlatBoxes(spec.shape, elements.lo, elements.hi)) {
    const auto bytes = static_cast<std::size_t>(ByteCount(spec, box));
    wanted.push_back({tensor, box, into.first(bytes)});
    into = into.subspan(bytes);
  }
  return LoadBoxes(fs, root, record, wanted, options).status();
}

}  // namespace

Status CheckTies(FileSystem& fs, const std::string& root, const CheckpointRecord& record,
                 const std::vector<TensorMatch::Tie>& ties, const ReadOptions& options) {
  for (const TensorMatch::Tie& tie : ties) {
    const std::size_t first = IndexOf(record, tie.name);
    const std::size_t second = IndexOf(record, tie.of);
    const TensorSpec& spec = record.tensors[first];
    const std::int64_t element = SizeOf(spec.dtype);
    const std::int64_t count = Box::Whole(spec.shape).count();
    const std::int64_t slice = kSliceBytes / element;
    for (std::int64_t at = 0; at < count; at += slice) {
      const Range range{at, std::min(count, at + slice)};
      std::vector<std::byte> a(static_cast<std::size_t>(range.size() * element));
      std::vector<std::byte> b(a.size());
      MUSTER_RETURN_IF_ERROR(LoadSlice(fs, root, record, first, range, a, options));
      MUSTER_RETURN_IF_ERROR(LoadSlice(fs, root, record, second, range, b, options));
      if (a == b) continue;
      return FailedPrecondition(
          fmt::format("tensors {} and {} are one here, and differ in checkpoint {}: load them as "
                      "two, or decide which one counts",
                      tie.name, tie.of, record.directory));
    }
  }
  return {};
}

}  // namespace muster::checkpoint
