// What musterd says of the job, followed by a thread of its own: a coordinator that is stopped or
// cut off must not hold up the one who breaks things.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "chaos/live/status.h"
#include "protocol/time.h"

namespace muster::chaos {

// Thread-safe.
class CoordinatorView {
 public:
  CoordinatorView(std::string url, std::string token, std::string job);
  CoordinatorView(const CoordinatorView&) = delete;
  CoordinatorView& operator=(const CoordinatorView&) = delete;
  ~CoordinatorView();

  // The last status that came; nothing before the first.
  [[nodiscard]] std::optional<JobStatus> Latest() const;
  // Whether the last question was answered.
  [[nodiscard]] bool Answers() const;
  // A musterd has been started: its list of events begins anew.
  void NewLife();
  // Asks as often as it can, while `eager`: for moments that pass quickly.
  void SetEager(bool eager);
  // Asks now, and returns when the answer is there or `limit` has passed.
  void Refresh(Duration limit);

  // Over all lives of musterd, as far as they were seen.
  [[nodiscard]] std::vector<EventStatus> Events() const;
  // One for each generation that was formed, in its last state.
  [[nodiscard]] std::vector<IncidentStatus> Incidents() const;

 private:
  void Run();
  void AskOnce(bool events);

  const std::string url_;
  const std::string token_;
  const std::string job_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  bool eager_ = false;
  bool answers_ = false;
  std::uint64_t wanted_ = 0;  // refreshes asked for
  std::uint64_t done_ = 0;    // and made
  std::uint64_t life_ = 0;
  std::int64_t since_ = 0;  // the first event that was not seen yet
  std::optional<JobStatus> latest_;
  std::vector<EventStatus> events_;
  std::map<std::int64_t, IncidentStatus> incidents_;  // by generation that they led to
  std::thread thread_;                                // last: it uses all of the above
};

}  // namespace muster::chaos
