#include "coordinator/server/log.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "protocol/codec_json.h"
#include "protocol/transport/steady_clock.h"

namespace muster::coordinator {
namespace {

std::string_view LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarning: return "warning";
    case LogLevel::kError: return "error";
  }
  return "error";
}

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::err;
}

void AppendEscaped(std::string& line, std::string_view text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      line += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
}

std::string UtcTime(double unix_ms) {
  const double seconds = std::floor(unix_ms / 1e3);
  const auto whole = static_cast<std::time_t>(seconds);
  std::tm utc{};
  (void)::gmtime_r(&whole, &utc);
  char text[32];
  (void)std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:03d}Z", text, static_cast<int>(unix_ms - seconds * 1e3));
}

}  // namespace

std::optional<LogFormat> ParseLogFormat(std::string_view word) {
  if (word == "text") return LogFormat::kText;
  if (word == "json") return LogFormat::kJson;
  return std::nullopt;
}

std::optional<LogLevel> ParseLogLevel(std::string_view word) {
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    if (word == LevelName(level)) return level;
  }
  return std::nullopt;
}

std::string TextLine(std::string_view message, LogFields fields) {
  std::string line;
  AppendEscaped(line, message);
  for (const auto& [name, value] : fields) {
    if (value.empty()) continue;
    line += fmt::format(" {}=", name);
    AppendEscaped(line, value);
  }
  return line;
}

std::string JsonLine(double unix_ms, LogLevel level, std::string_view message, LogFields fields) {
  nlohmann::ordered_json line;
  line["time"] = UtcTime(unix_ms);
  line["level"] = LevelName(level);
  line["message"] = message;
  for (const auto& [name, value] : fields) {
    if (!value.empty()) line[std::string(name)] = value;
  }
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Log::Log(LogFormat format, LogLevel least)
    : format_(format),
      least_(least),
      logger_(std::make_unique<spdlog::logger>("musterd",
                                               std::make_shared<spdlog::sinks::stderr_sink_mt>())) {
  // spdlog's own JSON pattern would not escape quotes: the line is made here.
  logger_->set_pattern(format == LogFormat::kJson ? "%v" : "%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  logger_->set_level(spdlog::level::debug);
  logger_->flush_on(spdlog::level::debug);
}

Log::~Log() = default;

void Log::Write(LogLevel level, std::string_view message, LogFields fields) {
  if (level < least_) return;
  const std::string line = format_ == LogFormat::kJson
                               ? JsonLine(UnixMillisNow(), level, message, fields)
                               : TextLine(message, fields);
  logger_->log(SpdlogLevel(level), "{}", line);
}

}  // namespace muster::coordinator
