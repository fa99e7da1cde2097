// The launcher's own session with musterd: says which processes were started and which have ended.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/messages.h"
#include "protocol/status.h"

namespace muster::cli {

// What the launcher hears from its session.
struct SessionNews {
  std::string line;        // for the user; may be empty
  std::optional<End> end;  // the job is over, durably
};

// What a launcher needs of a session; a test can do without a coordinator.
class Attestor {
 public:
  virtual ~Attestor() = default;
  // Passes on the present truth about one worker. Never blocks.
  virtual void Report(const Attest& attest) = 0;
  // Readable when TakeNews has something; -1: never.
  [[nodiscard]] virtual int news_fd() const = 0;
  [[nodiscard]] virtual std::vector<SessionNews> TakeNews() = 0;
};

struct SessionOptions {
  std::string url;
  std::string token;
  JobName job;
  NodeName node;
  std::uint64_t seed = 0;  // of the jitter between attempts
};

// Keeps a connection to musterd from a thread of its own, and dials again, with growing pauses of
// up to a second, for as long as it lives. The latest report about each worker is repeated on each
// new connection, since musterd may have been down when it was made. All calls from one thread.
class LauncherSession : public Attestor {
 public:
  // Starts the thread; returns at once, whether or not musterd can be reached.
  explicit LauncherSession(SessionOptions options);
  // Sends what is queued, if it is connected, and closes; takes at most kCloseTimeout (and as long
  // as a resolver that is at work).
  ~LauncherSession() override;
  LauncherSession(const LauncherSession&) = delete;
  LauncherSession& operator=(const LauncherSession&) = delete;

  void Report(const Attest& attest) override;
  [[nodiscard]] int news_fd() const override;
  [[nodiscard]] std::vector<SessionNews> TakeNews() override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::cli
