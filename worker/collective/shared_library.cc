#include "worker/collective/shared_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

namespace muster {

Result<SharedLibrary> SharedLibrary::Open(const std::string& what, const char* variable,
                                          std::span<const char* const> candidates) {
  std::vector<const char*> names(candidates.begin(), candidates.end());
  const char* chosen = std::getenv(variable);
  if (chosen != nullptr && *chosen != '\0') names = {chosen};
  std::string first_problem;
  for (const char* name : names) {
    SharedLibrary library;
    library.handle_ = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library.handle_ != nullptr) {
      library.name_ = name;
      return library;
    }
    if (first_problem.empty()) first_problem = ::dlerror();
  }
  return Unavailable(what + " is not there: " + first_problem +
                     "; install it, or name its file in " + variable);
}

void* SharedLibrary::Find(const char* name) const { return ::dlsym(handle_, name); }

}  // namespace muster
