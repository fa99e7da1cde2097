// A coordinator of the launcher's own, for trying things out on one machine.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "protocol/status.h"
#include "worker/cli/child_process.h"

namespace muster::cli {

// The path of `name` beside this executable, or `name` alone (to be looked up in PATH) when there
// is no such file.
[[nodiscard]] std::string BesideThisExecutable(const std::string& name);

// One musterd on a free port of the loopback. Used by the thread that started it, with which
// it dies. Its log goes to the launcher's stderr.
class Standalone {
 public:
  // Starts `musterd` with `data_directory` (made if it is not there; empty: one under $TMPDIR,
  // which is removed at the end) and waits until it listens, for at most 30 s. kInterrupted when
  // `signals` becomes readable before that.
  [[nodiscard]] static Result<std::unique_ptr<Standalone>> Start(const std::string& musterd,
                                                                 const std::string& data_directory,
                                                                 int signals);

  Standalone(const Standalone&) = delete;
  Standalone& operator=(const Standalone&) = delete;
  // Asks musterd to end, kills it if it takes more than 10 s.
  ~Standalone();

  [[nodiscard]] const std::string& url() const { return url_; }
  // Readable when musterd has ended; then call Revive. -1: it is gone for good.
  [[nodiscard]] int pidfd() const { return process_.has_value() ? process_->pidfd() : -1; }
  // Starts it again on the same port and data: workers come back to it unharmed. Returns one line
  // that says how it ended and what was done.
  [[nodiscard]] std::string Revive();

 private:
  Standalone() = default;
  [[nodiscard]] Status Launch(const std::string& listen);
  [[nodiscard]] Status AwaitPort(int signals);

  std::string musterd_;
  std::string data_directory_;
  bool remove_data_ = false;
  std::string url_;
  int revivals_ = 0;
  std::optional<ChildProcess> process_;
};

}  // namespace muster::cli
