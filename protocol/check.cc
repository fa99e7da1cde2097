#include "protocol/check.h"

#include <cstdio>
#include <cstdlib>

#ifdef MUSTER_MUTANTS
#include <string>

#include "protocol/mutants.h"
#endif

namespace muster {

void CheckFailed(const char* file, int line, const char* condition, std::string_view message) {
#ifdef MUSTER_MUTANTS
  throw CheckFailure(std::string(file) + ":" + std::to_string(line) +
                     ": check failed: " + condition + ": " + std::string(message));
#else
  std::fprintf(stderr, "%s:%d: check failed: %s: %.*s\n", file, line, condition,
               static_cast<int>(message.size()), message.data());
  std::fflush(stderr);
  std::abort();
#endif
}

}  // namespace muster
