// One session of a worker or a launcher, between its channel and the driver.
#pragma once

#include <memory>

#include "coordinator/server/driver.h"
#include "coordinator/server/log.h"
#include "protocol/transport/channel.h"
#include "protocol/transport/task_group.h"

namespace muster::coordinator {

// How long a new session may take over its first message.
inline constexpr Duration kHelloTimeout = Duration::Seconds(5);

// Serves the channel until it ends, as a task of `group`. The driver hears of the session with its
// first message, which must be Hello or LauncherHello. Anything that is no message that a client
// sends (bad JSON, too deep, a wrong field) is answered with Refused and the reason, and the
// session is closed; nothing else is harmed. `driver`, `group` and `log` outlive the io_context's
// handlers.
void ServeSession(IoContext& io, const std::shared_ptr<Channel>& channel, Driver& driver,
                  TaskGroup& group, Log* log);

}  // namespace muster::coordinator
