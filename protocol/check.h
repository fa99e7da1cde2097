// Always-on checks for bugs. A check that fails prints where, what and the message, and aborts the
// process: a wrong state must not reach a disk or a peer. Bad input is never checked this way; it
// gets a Status.
#pragma once

#include <string_view>

namespace muster {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              std::string_view message);

}  // namespace muster

#define MUSTER_CHECK(condition, message)                              \
  do {                                                                \
    if (!(condition)) [[unlikely]]                                    \
      ::muster::CheckFailed(__FILE__, __LINE__, #condition, message); \
  } while (false)
