#include "protocol/ids.h"

#include <cstddef>

namespace muster {

std::string ToHex(std::uint64_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4U) text[i] = kDigits[value & 15U];
  return text;
}

bool FromHex(const std::string& text, std::uint64_t* value) {
  if (text.size() != 16) return false;
  std::uint64_t result = 0;
  for (const char c : text) {
    std::uint64_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<std::uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<std::uint64_t>(c - 'a') + 10;
    } else {
      return false;
    }
    result = (result << 4U) | digit;
  }
  *value = result;
  return true;
}

}  // namespace muster
