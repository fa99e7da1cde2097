// One of every message and record, with no field at its default.
#pragma once

#include <vector>

#include "protocol/messages.h"
#include "protocol/records.h"

namespace muster {

[[nodiscard]] std::vector<Message> SampleMessages();
[[nodiscard]] GenerationRecord SampleGeneration();
[[nodiscard]] JobRecord SampleJobRecord();
[[nodiscard]] CheckpointEntry SampleCheckpointEntry();

}  // namespace muster
