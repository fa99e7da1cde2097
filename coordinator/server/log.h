// musterd's log: one line per thing that happened, to stderr, as text for people or as JSON for
// machines.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/status.h"

namespace spdlog {
class logger;
}  // namespace spdlog

namespace muster::coordinator {

enum class LogFormat { kText, kJson };
enum class LogLevel { kDebug, kInfo, kWarning, kError };

// "text", "json" and "debug", "info", "warning", "error"; nothing for other words.
[[nodiscard]] std::optional<LogFormat> ParseLogFormat(std::string_view word);
[[nodiscard]] std::optional<LogLevel> ParseLogLevel(std::string_view word);

// Empty values are left out of the line.
using LogField = std::pair<std::string_view, std::string>;
using LogFields = std::initializer_list<LogField>;

// `message job=a worker=w0` with control characters escaped, so that no peer can forge a line.
[[nodiscard]] std::string TextLine(std::string_view message, LogFields fields);
// {"time":"…Z","level":"info","message":"…","job":"a"} with everything escaped as JSON asks for.
[[nodiscard]] std::string JsonLine(double unix_ms, LogLevel level, std::string_view message,
                                   LogFields fields);

// Thread-safe. Writing blocks while stderr does.
class Log {
 public:
  Log(LogFormat format, LogLevel least);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void Write(LogLevel level, std::string_view message, LogFields fields = {});
  void Info(std::string_view message, LogFields fields = {}) {
    Write(LogLevel::kInfo, message, fields);
  }
  void Warning(std::string_view message, LogFields fields = {}) {
    Write(LogLevel::kWarning, message, fields);
  }
  void Error(std::string_view message, LogFields fields = {}) {
    Write(LogLevel::kError, message, fields);
  }

 private:
  const LogFormat format_;
  const LogLevel least_;
  const std::unique_ptr<spdlog::logger> logger_;
};

}  // namespace muster::coordinator
