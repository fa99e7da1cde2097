// From what the user wants to what the session needs.
#pragma once

#include <string>

#include "protocol/records.h"
#include "protocol/status.h"
#include "worker/client/state_table.h"
#include "worker/client/worker.h"
#include "worker/collective/flight_file.h"
#include "worker/core/session.h"

namespace muster::worker {

// Checks the options as far as that is possible without the coordinator, which checks the rest.
[[nodiscard]] Status CheckOptions(const WorkerOptions& options, const StateTable& table);
// What carries the tensors of this worker; loads NCCL, if it comes to that.
[[nodiscard]] Result<Backend> BackendOf(const WorkerOptions& options);
// This machine, as people know it.
[[nodiscard]] std::string HostName();
// Names and numbers of this process; the data plane's address is left empty.
[[nodiscard]] Identity IdentityOf(const WorkerOptions& options, const StateTable& table);
// The flight ring of this worker, in `directory` as WorkerOptions::flight_directory has it. A
// worker without one is a worker all the same: an error is a line on stderr.
[[nodiscard]] FlightFile OpenFlight(const std::string& directory, const Identity& identity);

}  // namespace muster::worker
