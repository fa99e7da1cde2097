// The bytes on a data connection. Both ends are the same build on machines of the same byte order,
// so the structs below are what is sent; every field has a fixed place and size.
//
// A connection starts with a greeting: Hello, Welcome and Confirm, one Greeting each. Then come
// frames, each a FrameHeader and `payload_bytes` of data. Every operation sends, on each connection
// that it uses and in both directions, one kOperation frame that says what is being done; it
// carries the payload of up to kEagerBytes along. Longer payloads follow in kContinuation frames of
// at most kChunkBytes each, once the other side's kOperation frame has been seen and fits. A
// kFault frame may stand wherever a header may: its sender has given up.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace muster {

static_assert(std::endian::native == std::endian::little, "the frames are little-endian");

inline constexpr std::size_t kEagerBytes = 64 * 1024;
inline constexpr std::size_t kChunkBytes = 256 * 1024;

enum class FrameKind : std::uint8_t { kOperation = 1, kContinuation = 2, kFault = 3 };
enum class Operation : std::uint8_t {
  kBarrier = 1,
  kAllReduce,
  kAllGather,
  kBroadcast,
  kExchange,
  kSend,
  kRecv,
};

inline constexpr std::uint32_t kFrameMagic = 0x4652'534dU;  // "MSRF"

struct FrameHeader {
  std::uint32_t magic = kFrameMagic;
  FrameKind kind = FrameKind::kOperation;
  Operation operation = Operation::kBarrier;
  std::uint8_t element_type = 0;
  std::uint8_t reduce_op = 0;
  std::uint64_t sequence = 0;        // of operations on this connection
  std::uint64_t total_bytes = 0;     // the size of the whole operation, where all ranks share it
  std::uint64_t outgoing_bytes = 0;  // from the sender of this header to its receiver
  std::uint64_t incoming_bytes = 0;  // what the sender of this header expects from its receiver
  std::uint64_t detail = 0;          // the root of a broadcast, the digest of gathered counts
  std::uint32_t payload_bytes = 0;   // that follow this header
  std::int32_t culprit = -1;         // kFault: the rank on whose account, or -1
  std::uint32_t code = 0;            // kFault: the Code of the sender's error
  std::uint32_t reserved = 0;
};
static_assert(sizeof(FrameHeader) == 64);

enum class GreetingKind : std::uint32_t { kHello = 1, kWelcome = 2, kConfirm = 3 };
// The answer in a Welcome.
enum class Verdict : std::uint32_t {
  kAccepted = 0,
  kNotYet,     // the listener is still in an older generation: try again
  kStale,      // the listener is in a newer generation: the dialer's is over
  kForeign,    // another job or lineage
  kMisplaced,  // not the rank that was meant, or another world size
  kDuplicate,  // that rank is connected already
};

inline constexpr std::array<char, 8> kGreetingMagic = {'M', 'U', 'S', 'T', 'E', 'R', 'd', '1'};

struct Greeting {
  std::array<char, 8> magic = kGreetingMagic;
  GreetingKind kind = GreetingKind::kHello;
  Verdict verdict = Verdict::kAccepted;
  std::uint64_t job_digest = 0;
  std::uint64_t lineage = 0;
  std::int64_t generation = 0;
  std::int32_t from = -1;  // rank of the sender
  std::int32_t to = -1;    // rank that it believes to speak to
  std::int32_t world_size = 0;
  std::uint32_t reserved = 0;
  std::uint64_t members_digest = 0;  // of the endpoints of all ranks, in order
};
static_assert(sizeof(Greeting) == 64);

// FNV-1a: tells apart what must not be mixed up by mistake. Not a secret.
[[nodiscard]] constexpr std::uint64_t DigestOf(std::string_view text,
                                               std::uint64_t seed = 0xcbf2'9ce4'8422'2325ULL) {
  for (const char c : text) {
    seed = (seed ^ static_cast<std::uint8_t>(c)) * 0x0000'0100'0000'01b3ULL;
  }
  return seed;
}

}  // namespace muster
