#include "tests/gpu/double/double_hooks.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace muster::gpu_double {

void Say(const std::string& line) {
  // In one piece, so that the lines of several processes do not mix.
  const std::string whole =
      "muster test double [" + std::to_string(::getpid()) + "]: " + line + "\n";
  std::fputs(whole.c_str(), stderr);
}

void Die(const std::string& line) {
  Say("ABORT: " + line);
  std::abort();
}

std::string Environment(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

long EnvironmentNumber(const char* name, long otherwise) {
  const char* value = std::getenv(name);
  if (value == nullptr) return otherwise;
  char* end = nullptr;
  const long number = std::strtol(value, &end, 10);
  if (*value == '\0' || *end != '\0') Die(std::string(name) + " is no number: " + value);
  return number;
}

}  // namespace muster::gpu_double
