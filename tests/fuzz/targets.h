// What is fuzzed: the readers of bytes that come from a disk. Each takes any bytes and has to come
// back; what it accepts has to survive being written and read again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace muster::fuzz {

// The header of a shard file. The first byte says whether the rest is taken as it is or gets the
// length that belongs to it, the next eight how much data the file has.
void ReadHeader(std::span<const std::uint8_t> bytes);

// A manifest. The bytes are what stands for the checkpoint; frame and digest are put around them,
// for no fuzzer finds a digest by trying.
void ReadManifest(std::span<const std::uint8_t> bytes);

// Valid inputs to begin with.
[[nodiscard]] std::vector<std::string> HeaderSeeds();
[[nodiscard]] std::vector<std::string> ManifestSeeds();

}  // namespace muster::fuzz
