#include "tests/gpu/double/kernel_twins.h"

#include <algorithm>

namespace muster::gpu_double {

const Twin* FindTwin(std::string_view name) {
  // Every table of twins is named here: Muster's own, then those of programs that train with it.
  const std::span<const Twin> tables[] = {
      MusterTwins(),
  };
  for (const std::span<const Twin> table : tables) {
    const auto found = std::ranges::find(table, name, &Twin::name);
    if (found != table.end()) return &*found;
  }
  return nullptr;
}

}  // namespace muster::gpu_double
