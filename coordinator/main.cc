// musterd, the coordinator: flags, wiring, signals.

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>

#include "coordinator/core/config.h"
#include "coordinator/server/listener.h"
#include "coordinator/server/log.h"
#include "coordinator/server/server.h"
#include "coordinator/server/store_adapter.h"
#include "protocol/duration_text.h"
#include "protocol/limits.h"
#include "protocol/status.h"
#include "protocol/transport/net.h"
#include "protocol/transport/url.h"

namespace muster::coordinator {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

struct Flags {
  std::string listen = fmt::format("127.0.0.1:{}", kDefaultPort);
  std::string data_dir;
  std::string port_file;
  std::string token_file;
  std::string log_format = "text";
  std::string log_level = "info";
  Config config;
};

// "--join-window" can be set by MUSTERD_JOIN_WINDOW as well; the flag wins.
std::string EnvironmentName(const std::string& flag) {
  std::string name = "MUSTERD_";
  for (const char c : flag.substr(2)) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

void AddDuration(CLI::App& app, const std::string& flag, Duration* value, const char* meaning) {
  app.add_option_function<std::string>(
         flag,
         [flag, value](const std::string& text) {
           const Result<Duration> parsed = ParseDuration(text);
           if (!parsed.ok()) throw CLI::ValidationError(flag, parsed.status().message());
           *value = *parsed;
         },
         meaning)
      ->type_name("DURATION")
      ->default_str(DurationText(*value))
      ->envname(EnvironmentName(flag))
      ->group("Timing");
}

template <class T>
CLI::Option* Add(CLI::App& app, const std::string& flag, T* value, const char* meaning) {
  return app.add_option(flag, *value, meaning)
      ->envname(EnvironmentName(flag))
      ->capture_default_str();
}

void AddTiming(CLI::App& app, Config& config) {
  AddDuration(app, "--settle", &config.settle, "Failures within this time are taken as one");
  AddDuration(app, "--join-window", &config.join_window,
              "The first generation forms this long after min_workers are there");
  AddDuration(app, "--growth-interval", &config.growth_interval,
              "Waiting workers are taken in at most once in this time");
  AddDuration(app, "--forming-timeout", &config.forming_timeout,
              "A member answers and forms within this time, or is left out");
  AddDuration(app, "--autonomy", &config.autonomy,
              "How long workers train on without contact, and an unseen generation is waited for");
  AddDuration(app, "--progress-timeout", &config.progress_timeout,
              "A rank that others wait for this long (and 5 step times) is left out");
  AddDuration(app, "--first-step-timeout", &config.first_step_timeout,
              "The same, until 20 steps of a generation are known");
  AddDuration(app, "--checkpoint-timeout", &config.checkpoint_timeout,
              "A checkpoint that is not complete by then is given up");
  AddDuration(app, "--max-patience", &config.max_patience,
              "Longest wait for a silent member whose loss means a rollback");
  AddDuration(app, "--cooldown", &config.cooldown,
              "A worker's place that failed too often waits this long, twice as long each time");
  AddDuration(app, "--max-cooldown", &config.max_cooldown, "... and never longer than this");
  AddDuration(app, "--cooldown-forgiveness", &config.cooldown_forgiveness,
              "Failures are forgotten after this time without one");
  Add(app, "--cooldown-failures", &config.cooldown_failures,
      "The failure of a worker's place that begins its first cool-down");
  Add(app, "--max-forming-attempts", &config.max_forming_attempts,
      "A job ends when so many attempts to form a generation have failed in a row")
      ->group("Timing");
  Add(app, "--max-consecutive-skips", &config.max_consecutive_skips,
      "A job ends after so many steps in a row whose gradient was not finite")
      ->group("Timing");
}

void AddFlags(CLI::App& app, Flags& flags) {
  Add(app, "--data-dir", &flags.data_dir,
      "Directory of the coordinator's memory, on a local disk; created if need be")
      ->required()
      ->type_name("DIR");
  Add(app, "--listen", &flags.listen, "Where to listen; port 0 is any free one")
      ->type_name("HOST:PORT");
  Add(app, "--port-file", &flags.port_file, "The bound HOST:PORT is written here when it is ready")
      ->type_name("FILE");
  Add(app, "--token-file", &flags.token_file,
      "File with the secret that clients must send; needed beyond loopback")
      ->type_name("FILE");
  Add(app, "--log-format", &flags.log_format, "text or json")
      ->check(CLI::IsMember({"text", "json"}));
  Add(app, "--log-level", &flags.log_level, "Least level that is logged")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  AddTiming(app, flags.config);
}

Result<std::string> ReadToken(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path);
  std::ostringstream text;
  if (!(file && text << file.rdbuf())) {
    return NotFound(fmt::format("--token-file {}: it cannot be read, or is empty", path));
  }
  std::string token = text.str();
  const auto is_space = [](char c) { return c == '\n' || c == '\r' || c == ' ' || c == '\t'; };
  while (!token.empty() && is_space(token.back())) token.pop_back();
  if (token.empty()) return InvalidArgument(fmt::format("--token-file {}: it is empty", path));
  for (const char c : token) {
    if (c <= ' ' || c > '~') {
      return InvalidArgument(fmt::format(
          "--token-file {}: a token is one line of printable ASCII without spaces", path));
    }
  }
  return token;
}

// Appears with its whole content or not at all, since others wait for it to appear.
Status WritePortFile(const std::string& path, const std::string& address) {
  if (path.empty()) return {};
  const std::string temporary = fmt::format("{}.{}.tmp", path, ::getpid());
  std::ofstream file(temporary, std::ios::trunc);
  file << address << '\n';
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const Status status = FromErrno(errno, fmt::format("--port-file {}", path));
    (void)::unlink(temporary.c_str());
    return status;
  }
  return {};
}

// Serves until a signal ends it.
Status Serve(const Flags& flags, const HostPort& listen, const std::string& token, Log& log) {
  Result<OpenedStore> opened = OpenStore(flags.data_dir);
  if (!opened.ok()) return opened.status();
  if (!flags.port_file.empty()) (void)::unlink(flags.port_file.c_str());  // of an earlier run
  RaiseFileLimit(&log);

  IoContext io(1);
  ServerOptions options;
  options.listen = listen;
  options.token = token;
  options.log = &log;
  options.driver.config = flags.config;
  std::random_device random;
  options.driver.seed = (std::uint64_t{random()} << 32U) | random();
  options.driver.stored = std::move(opened->jobs);
  options.driver.persist = PersistThrough(*opened->writer);
  auto server = std::make_unique<Server>(io, std::move(options));
  MUSTER_RETURN_IF_ERROR(server->Start());
  const std::string address = server->address().ToString();
  MUSTER_RETURN_IF_ERROR(WritePortFile(flags.port_file, address));
  log.Info(fmt::format("musterd listening on http://{}", address),
           {{"data_dir", flags.data_dir}, {"pid", fmt::to_string(::getpid())}});

  net::basic_signal_set<Executor> signals(io.get_executor(), SIGTERM, SIGINT);
  signals.async_wait([&](const ErrorCode& error, int number) {
    if (error) return;
    log.Info(fmt::format("ending on {}: workers go on training",
                         number == SIGINT ? "SIGINT" : "SIGTERM"));
    signals.async_wait([&](const ErrorCode& again, int) {
      if (!again) io.stop();
    });
    server->Stop([&] { io.stop(); });
  });
  io.run();
  server.reset();
  opened->writer->Stop();
  if (!flags.port_file.empty()) (void)::unlink(flags.port_file.c_str());
  log.Info("musterd ended");
  return {};
}

int Main(int argc, char** argv) {
  CLI::App app(
      "musterd, the coordinator of Muster: it tracks the workers of training jobs, forms a new\n"
      "generation when one fails or comes back, and keeps the index of checkpoints.\n"
      "Each flag can also be set in the environment, as MUSTERD_LISTEN for --listen; the flag "
      "wins.",
      "musterd");
  app.set_version_flag("--version",
                       fmt::format("musterd, protocol {}.{}", kProtocolMajor, kProtocolMinor));
  app.footer(
      "Endpoints: /livez /readyz /metrics /v1/jobs /v1/jobs/JOB /v1/jobs/JOB/events?since=N\n"
      "SIGTERM ends it cleanly; workers go on training and come back to the next musterd that is\n"
      "started on the same data directory.");
  Flags flags;
  AddFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  const auto fail = [](const Status& status, int code) {
    std::fprintf(stderr, "musterd: %s\n", status.message().c_str());
    return code;
  };
  if (const Status valid = flags.config.Validate(); !valid.ok()) return fail(valid, kExitUsage);
  const Result<HostPort> listen = ParseHostPort(flags.listen);
  if (!listen.ok())
    return fail(InvalidArgument("--listen: " + listen.status().message()), kExitUsage);
  const Result<std::string> token = ReadToken(flags.token_file);
  if (!token.ok()) return fail(token.status(), kExitFailed);
  if (const Status exposed = CheckExposure(*listen, *token); !exposed.ok()) {
    return fail(exposed, kExitUsage);
  }
  // A peer that goes away while it is written to is an error of that connection alone.
  (void)std::signal(SIGPIPE, SIG_IGN);
  Log log(ParseLogFormat(flags.log_format).value_or(LogFormat::kText),
          ParseLogLevel(flags.log_level).value_or(LogLevel::kInfo));
  const Status served = Serve(flags, *listen, *token, log);
  return served.ok() ? 0 : fail(served, kExitFailed);
}

}  // namespace
}  // namespace muster::coordinator

int main(int argc, char** argv) {
  try {
    return muster::coordinator::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "musterd: %s\n", error.what());
    return 1;
  }
}
