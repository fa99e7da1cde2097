#include "checkpoint/stream_copy.h"

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace muster::checkpoint {

#ifdef __SSE2__

namespace {

constexpr std::size_t kLine = 64;
// Below this a copy may well stay in the caches, and be as fast that way.
constexpr std::size_t kLargeBytes = std::size_t{32} << 10U;
constexpr std::size_t kAheadBytes = 512;

// REQUIRES: `to` is a multiple of kLine, and so is `count`.
void StreamLines(std::byte* to, const std::byte* from, std::size_t count) {
  for (std::size_t i = 0; i < count; i += kLine) {
    _mm_prefetch(reinterpret_cast<const char*>(from + i + kAheadBytes), _MM_HINT_NTA);
    const auto* source = reinterpret_cast<const __m128i*>(from + i);
    auto* target = reinterpret_cast<__m128i*>(to + i);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  // Such stores become visible in any order without it.
  _mm_sfence();
}

}  // namespace

void StreamCopy(std::byte* to, const std::byte* from, std::size_t count) {
  if (count < kLargeBytes) {
    if (count > 0) std::memcpy(to, from, count);
    return;
  }
  const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  const std::size_t lines = (count - head) / kLine * kLine;
  std::memcpy(to, from, head);
  StreamLines(to + head, from + head, lines);
  std::memcpy(to + head + lines, from + head + lines, count - head - lines);
}

#else

void StreamCopy(std::byte* to, const std::byte* from, std::size_t count) {
  if (count > 0) std::memcpy(to, from, count);
}

#endif

}  // namespace muster::checkpoint
