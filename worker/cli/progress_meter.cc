#include "worker/cli/progress_meter.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "protocol/transport/steady_clock.h"
#include "worker/cli/text.h"

namespace muster::cli {
namespace {

constexpr Duration kOnTerminal = Duration::Millis(200);
constexpr Duration kElsewhere = Duration::Seconds(10);
constexpr const char* kEraseToEnd = "\x1b[K";

}  // namespace

std::string ProgressText(const std::string& what, std::int64_t done, std::int64_t total,
                         Duration elapsed) {
  done = std::clamp<std::int64_t>(done, 0, total);
  const auto all = static_cast<double>(std::max<std::int64_t>(total, 1));
  const auto part = static_cast<double>(done);
  const double seconds = std::max(elapsed.ToSeconds(), 1e-9);
  const double rate = part / seconds;
  return fmt::format("{}: {} of {} ({:.0f} %), {}/s, {} left", what, BytesText(part),
                     BytesText(static_cast<double>(total)), 100 * part / all, BytesText(rate),
                     rate > 0 ? AgeText((all - part) / rate * 1e3) : "?");
}

ProgressMeter::ProgressMeter(std::string what, std::int64_t total, std::FILE* out)
    : what_(std::move(what)),
      total_(total),
      out_(out),
      terminal_(isatty(fileno(out)) == 1),
      started_(MonotonicNow()),
      shown_(started_) {}

ProgressMeter::~ProgressMeter() { Remove(); }

void ProgressMeter::Remove() {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(visible_, false)) return;
  fmt::print(out_, "\r{}", kEraseToEnd);
  std::fflush(out_);
}

void ProgressMeter::Add(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  done_ += bytes;
  const Instant now = MonotonicNow();
  if (now - shown_ < (terminal_ ? kOnTerminal : kElsewhere)) return;
  shown_ = now;
  const std::string text = ProgressText(what_, done_, total_, now - started_);
  if (terminal_) {
    fmt::print(out_, "\r{}{}", text, kEraseToEnd);
    visible_ = true;
  } else {
    fmt::print(out_, "{}\n", text);
  }
  std::fflush(out_);
}

Duration ProgressMeter::elapsed() const { return MonotonicNow() - started_; }

}  // namespace muster::cli
