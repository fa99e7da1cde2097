// The yardstick of the checkpoint benchmark: what the disk gives to a program that does nothing
// but write or read one file around the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "protocol/status.h"

namespace muster::bench {

struct RawSetting {
  int threads = 1;
  std::int64_t piece_bytes = 0;
  [[nodiscard]] std::string ToString() const;
};
// Those worth trying.
[[nodiscard]] std::vector<RawSetting> RawSettings();

// Creates the file, writes the bytes, makes them durable and closes it; returns the seconds.
// REQUIRES: address and length are multiples of 4096.
[[nodiscard]] Result<double> RawWrite(const std::string& path, std::span<const std::byte> bytes,
                                      const RawSetting& setting);
// Opens the file, reads its first bytes and closes it; returns the seconds. REQUIRES: as above.
[[nodiscard]] Result<double> RawRead(const std::string& path, std::span<std::byte> bytes,
                                     const RawSetting& setting);

// Makes the page cache forget the file, so that reads of it come from the disk.
Status DropFromCache(const std::string& path);

// Seconds of a clock that only runs forward.
[[nodiscard]] double NowSeconds();

}  // namespace muster::bench
