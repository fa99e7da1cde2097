// What happened to each job, newest last, for `GET …/events` and for the log.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>

#include "coordinator/core/effects.h"
#include "coordinator/server/job_json.h"
#include "coordinator/server/log.h"
#include "protocol/ids.h"

namespace muster::coordinator {

// Keeps the newest kMaxEvents of each job, in memory: a restart begins anew. Confined to the
// driver's thread.
class EventLog {
 public:
  // Numbers the event within its job, keeps it and writes its line to `log` (may be null).
  void Add(const Event& event, const ClockPair& clocks, Log* log);

  // {"events":[…], "next":N}: the events of the job numbered `since` or above, oldest first, and
  // what to ask with next time. Numbers begin at 1; those dropped meanwhile are missing from the
  // front. A `since` beyond `next` comes from before a restart and gets everything. A job without
  // events has an empty list.
  [[nodiscard]] std::string Since(const JobName& job, std::int64_t since) const;

 private:
  struct Entry {
    std::int64_t sequence = 0;
    std::string json;
  };
  struct Ring {
    std::int64_t next = 1;
    std::deque<Entry> entries;
  };
  std::map<JobName, Ring> rings_;
};

}  // namespace muster::coordinator
