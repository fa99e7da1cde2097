// A library that is looked for at run time.
#pragma once

#include <span>
#include <string>

#include "protocol/status.h"

namespace muster {

class SharedLibrary {
 public:
  // The first of `candidates` that loads; the value of the environment's `variable`, if it is set,
  // alone. `what` names it for messages: "NCCL". kUnavailable, one line, when there is none. It
  // stays loaded until the process ends: what it started runs for as long.
  [[nodiscard]] static Result<SharedLibrary> Open(const std::string& what, const char* variable,
                                                  std::span<const char* const> candidates);
  // The address of a function; null when it has no such one.
  [[nodiscard]] void* Find(const char* name) const;
  // As it was opened.
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace muster
