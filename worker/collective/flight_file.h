// Where flight rings lie, who makes them and who takes them away.
//
// A worker's ring is the file "<job>-<worker>-<pid>.flight" of a directory that all jobs of a user
// share. It is removed when the worker ends in order. One that was left by a process that died
// stays for whoever asks why, until a newer one of the same job and worker was left; and of all
// that dead processes left in a directory the kMaxDeadFlights newest stay.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "protocol/ids.h"
#include "protocol/status.h"
#include "worker/collective/flight_ring.h"

namespace muster {

// About 17 MiB.
inline constexpr std::size_t kMaxDeadFlights = 256;

// "/dev/shm/muster-<uid>"
[[nodiscard]] std::string DefaultFlightDirectory();

// This process, as the worker `worker` of `job`.
[[nodiscard]] FlightIdentity ThisProcess(const JobName& job, const WorkerId& worker);

enum class Liveness {
  kAlive,
  kDead,     // a zombie counts as dead
  kUnknown,  // of another host or PID namespace, or not to be seen from here
};
// Whether the very process that made the ring still lives.
[[nodiscard]] Liveness LivenessOf(const FlightIdentity& identity);

// "<job>-<worker>-<pid>.flight", with a digest in place of what a file's name cannot hold.
[[nodiscard]] std::string FlightFileName(const FlightIdentity& identity);

struct FoundFlight {
  std::string path;
  FlightLog log;
  Liveness liveness = Liveness::kUnknown;
};
struct FlightFolder {
  std::vector<FoundFlight> flights;  // by path
  // "PATH: why", for each file that bears the name of a ring and cannot be read as one.
  std::vector<std::string> unreadable;
};
// Reads all rings of a directory. kNotFound and the like when it cannot be listed. A ring that goes
// away meanwhile is no error.
[[nodiscard]] Result<FlightFolder> ReadFlights(const std::string& directory);

// The ring of one worker, from its beginning to its end in order.
// Threads: as FlightRing.
class FlightFile {
 public:
  FlightFile() = default;
  // Makes the directory where it is missing, removes old rings by the rules above, and makes this
  // one. Empty: DefaultFlightDirectory(), which is refused (kPermissionDenied) when another user
  // owns it or may write to it. On an error there is no ring, and work goes on without.
  Status Open(const std::string& directory, const FlightIdentity& identity);
  // The worker ended in order: nobody will ask.
  void Remove();
  [[nodiscard]] FlightRing& ring() { return ring_; }

 private:
  FlightRing ring_;
};

}  // namespace muster
