#include "chaos/live/coordinator_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "protocol/transport/http_get.h"

namespace muster::chaos {
namespace {

constexpr Duration kTimeout = Duration::Seconds(1);
constexpr std::chrono::milliseconds kInterval{20};
constexpr std::chrono::milliseconds kEagerInterval{1};
// Events are asked for with every so manieth status.
constexpr int kEventsEvery = 5;

}  // namespace

CoordinatorView::CoordinatorView(std::string url, std::string token, std::string job)
    : url_(std::move(url)),
      token_(std::move(token)),
      job_(std::move(job)),
      thread_([this] { Run(); }) {}

CoordinatorView::~CoordinatorView() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void CoordinatorView::Run() {
  int round = 0;
  while (true) {
    std::uint64_t wanted = 0;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, eager_ ? kEagerInterval : kInterval,
                     [this] { return stop_ || wanted_ > done_; });
      if (stop_) return;
      wanted = wanted_;
    }
    AskOnce(++round % kEventsEvery == 0 || wanted > 0);
    {
      const std::lock_guard lock(mutex_);
      done_ = std::max(done_, wanted);
    }
    wake_.notify_all();
  }
}

void CoordinatorView::AskOnce(bool events) {
  std::uint64_t life = 0;
  std::int64_t since = 0;
  {
    const std::lock_guard lock(mutex_);
    life = life_;
    since = since_;
  }
  const Result<std::string> body = HttpGet(url_, "/v1/jobs/" + job_, token_, kTimeout);
  Result<JobStatus> status = body.ok() ? ParseJobStatus(*body) : body.status();
  Result<std::vector<EventStatus>> fresh = std::vector<EventStatus>{};
  if (status.ok() && events) {
    const Result<std::string> text =
        HttpGet(url_, fmt::format("/v1/jobs/{}/events?since={}", job_, since), token_, kTimeout);
    fresh = text.ok() ? ParseEvents(*text) : text.status();
  }
  const std::lock_guard lock(mutex_);
  answers_ = status.ok();
  if (life != life_) return;  // of a musterd that is no more
  if (status.ok()) {
    for (const IncidentStatus& incident : status->incidents) incidents_[incident.to] = incident;
    latest_ = std::move(status).value();
  }
  if (!fresh.ok()) return;
  for (EventStatus& event : *fresh) {
    if (event.sequence < since_) continue;
    since_ = event.sequence + 1;
    events_.push_back(std::move(event));
  }
}

std::optional<JobStatus> CoordinatorView::Latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

bool CoordinatorView::Answers() const {
  const std::lock_guard lock(mutex_);
  return answers_;
}

void CoordinatorView::NewLife() {
  const std::lock_guard lock(mutex_);
  ++life_;
  since_ = 0;
}

void CoordinatorView::SetEager(bool eager) {
  const std::lock_guard lock(mutex_);
  eager_ = eager;
}

void CoordinatorView::Refresh(Duration limit) {
  std::unique_lock lock(mutex_);
  const std::uint64_t mine = ++wanted_;
  wake_.notify_all();
  wake_.wait_for(lock, std::chrono::nanoseconds(limit.nanos()), [&] { return done_ >= mine; });
}

std::vector<EventStatus> CoordinatorView::Events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

std::vector<IncidentStatus> CoordinatorView::Incidents() const {
  const std::lock_guard lock(mutex_);
  std::vector<IncidentStatus> all;
  for (const auto& [generation, incident] : incidents_) all.push_back(incident);
  return all;
}

}  // namespace muster::chaos
