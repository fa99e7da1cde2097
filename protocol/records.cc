#include "protocol/records.h"

#include <fmt/format.h>

namespace muster {

std::string CheckpointDirectory(const CheckpointKey& key) {
  return fmt::format("s{:012}-g{:08}", key.step.value(), key.generation.value());
}

}  // namespace muster
