// Effects and views as short lines that say what counts and none of the prose.
#pragma once

#include <functional>
#include <string>

#include "coordinator/core/describe.h"
#include "coordinator/core/effects.h"

namespace muster::coordinator {

using NameOfSession = std::function<std::string(SessionId)>;

// "a", or "a.2" for the second incarnation.
[[nodiscard]] std::string Show(const Member& member);
[[nodiscard]] std::string Show(const CheckpointKey& key);  // "s10-g1"
[[nodiscard]] std::string Show(const JobRecord& record);
// Without acknowledgements: "" for these.
[[nodiscard]] std::string Show(const Message& message);
// One line per durable change, per message (receivers of equal ones together), per close, and one
// for all events.
[[nodiscard]] std::string Show(const Effects& effects, const NameOfSession& name);
[[nodiscard]] std::string Show(const JobView& view);

}  // namespace muster::coordinator
