// XXH3-64, the digest of everything in a checkpoint. It finds damage (a bad block passes with
// probability 2^-64); it does not keep out somebody who forges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace muster::checkpoint {

[[nodiscard]] std::uint64_t DigestOf(std::span<const std::byte> bytes);
[[nodiscard]] std::uint64_t DigestOf(std::string_view text);

}  // namespace muster::checkpoint
