#include "worker/core/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "protocol/mutants.h"

namespace muster::worker {

namespace {

constexpr Duration kFirstRedial = Duration::Millis(50);
constexpr Duration kSlowestRedial = Duration::Seconds(1);
// While the coordinator is away, one line per this time says so.
constexpr Duration kComplainEvery = Duration::Seconds(10);

Incarnation DrawIncarnation(Prng& prng) {
  for (;;) {
    if (const std::uint64_t drawn = prng.Next(); drawn != 0) return Incarnation(drawn);
  }
}

// From the hello to the welcome.
constexpr Duration kWelcomeTimeout = Duration::Seconds(5);

// Errors of a dial that another attempt would meet again.
bool IsFinal(Code code) {
  return code == Code::kInvalidArgument || code == Code::kPermissionDenied ||
         code == Code::kFailedPrecondition;
}

}  // namespace

Session::Session(Identity identity, Instant now)
    : identity_(std::move(identity)),
      prng_(identity_.seed),
      backoff_(kFirstRedial, kSlowestRedial),
      redial_at_(now),
      next_complaint_(now),
      join_deadline_(now + identity_.connect_timeout),
      lease_(identity_.spec.failure_timeout, kDefaultAutonomy) {
  member_ = {identity_.worker, DrawIncarnation(prng_)};
  Dial();
}

void Session::Handle(const Input& input, Instant now) {
  if (end_) return;
  handled_at_ = now;
  std::visit([&](const auto& one) { On(one, now); }, input);
  if (end_) return;
  GoOnWithoutCoordinator(now);
  EnsureLease(now);
}

Instant Session::NextDeadline() const {
  if (end_) return Instant::Never();
  Instant next = lease_.NextChange(link_ == Link::kUp, handled_at_);
  if (link_ == Link::kDown) next = std::min(next, redial_at_);
  if (link_ == Link::kGreeting) next = std::min(next, greeted_ + kWelcomeTimeout);
  if (!joined_) next = std::min(next, join_deadline_);
  const Instant resume = stopped_at_ + lease_.lease() / 2;
  if (stopped_ && link_ != Link::kUp && resume > handled_at_) next = std::min(next, resume);
  return next;
}

bool Session::Running(Generation generation) const {
  return !end_ && started_ && started_->generation == generation && !interrupted() && !broken_;
}

Directive Session::Next(Instant now) const {
  if (end_) return Directive::kEnd;
  const bool may_proceed = lease_.MayProceed(link_ == Link::kUp, now);
  if (assigned_ && !formed_ && !form_failed_) {
    return may_proceed ? Directive::kForm : Directive::kWait;
  }
  const bool runs = started_ && Running(started_->generation) && !stopped_ && !initial_pending_ &&
                    !finished_ && !lease_.OutOfTouch(now);
  if (!runs) return Directive::kWait;
  const std::int64_t steps = identity_.spec.steps;
  return steps > 0 && committed_.value() >= steps ? Directive::kFinish : Directive::kTrain;
}

Rank Session::RankIn(const GenerationRecord& record) const {
  for (const MemberEntry& entry : record.members) {
    if (entry.member == member_) return entry.rank;
    if (Planted(Mutant::kAssignByName) && entry.member.worker == member_.worker) return entry.rank;
  }
  return Rank(-1);
}

// --- The connection ----------------------------------------------------------------------------

void Session::Dial() {
  link_ = Link::kDialing;
  effects_.dial = ++connection_;
}

void Session::On(const Connected& input, Instant now) {
  if (input.connection != connection_ || link_ != Link::kDialing) return;
  link_ = Link::kGreeting;
  greeted_ = now;
  SendHello();
}

void Session::On(const Disconnected& input, Instant now) {
  if (input.connection != connection_ || link_ == Link::kDown) return;
  if (!joined_ && IsFinal(input.why.code())) return Fail(input.why);
  // That an established session ended is no evidence that the coordinator is out of reach: it may
  // have cut off just this worker. A dial that fails is.
  Lost(input.why, link_ != Link::kUp, now);
}

void Session::Lost(const Status& why, bool evidence, Instant now) {
  const bool was_up = link_ == Link::kUp;
  link_ = Link::kDown;
  lease_.OnDown();
  if (evidence) lease_.OnUnreachable(now);
  redial_at_ = was_up ? now : now + backoff_.Next(prng_);
  effects_.wake = true;
  if (was_up || now >= next_complaint_) {
    next_complaint_ = now + kComplainEvery;
    Notice(fmt::format("no connection to the coordinator at {}: {}{}", identity_.url,
                       why.ok() ? "closed" : why.message(),
                       started_ ? "; training goes on" : "; trying again"));
  }
  if (!joined_ && now >= join_deadline_) {
    Fail(
        Unavailable(fmt::format("no coordinator answers at {} since {} s: {}. Is musterd running "
                                "there? MUSTER_COORDINATOR names it",
                                identity_.url, identity_.connect_timeout.millis() / 1000,
                                why.ok() ? "closed" : why.message())));
  }
}

void Session::On(const Looked& input, Instant) { identity_.found = input.found; }

void Session::On(const Received& input, Instant now) {
  if (input.connection != connection_ || link_ == Link::kDown) return;
  std::visit([&](const auto& message) { OnMessage(message, now); }, input.message);
}

void Session::On(const Tick& input, Instant now) {
  operations_ = input.operations;
  waiting_ = input.waiting;
  if (link_ == Link::kUp && lease_.Silent(now)) {
    effects_.close = true;
    Lost(Unavailable(fmt::format("it has not answered for {} ms", lease_.lease().millis())), true,
         now);
  } else if (link_ == Link::kUp && now >= lease_.next_heartbeat()) {
    SendHeartbeat(now);
  } else if (link_ == Link::kDown && now >= redial_at_) {
    Dial();
  }
  if (link_ == Link::kGreeting && now - greeted_ >= kWelcomeTimeout) {
    effects_.close = true;
    Lost(Unavailable("connected, but no welcome came"), true, now);
  }
  if (joined_ && lease_.OutOfTouch(now) != out_of_touch_) {
    out_of_touch_ = !out_of_touch_;
    if (out_of_touch_) {
      Notice(
          "out of touch with the coordinator for so long that it may go on without this worker: "
          "no step is committed before it is back");
    }
  }
  if (!joined_ && now >= join_deadline_ && !end_) {
    Lost(Unavailable("no answer"), true, now);
  }
}

// Growth never stops training: agreed to stop, not interrupted, and nobody there to ask.
void Session::GoOnWithoutCoordinator(Instant now) {
  if (stopped_ && !interrupted() && link_ != Link::kUp && lease_.Unreachable(now) &&
      now - stopped_at_ >= lease_.lease() / 2) {
    stopped_ = false;
    effects_.wake = true;
    Notice(
        fmt::format("stopped after step {} for a change of members, but the coordinator is away: "
                    "going on in generation {}",
                    committed_.value(), started_ ? started_->generation.value() : 0));
  }
}

void Session::EnsureLease(Instant now) {
  if (lease_.asking() && lease_.MayProceed(link_ == Link::kUp, now)) effects_.wake = true;
  if (!NeedsLease() || lease_.Valid(now) || lease_.asking()) return;
  lease_.Ask(now);
  if (link_ == Link::kUp) SendHeartbeat(now);
  if (link_ == Link::kDown) Dial();
}

bool Session::NeedsLease() const {
  const bool outcome = open_.outcome() == Outcome::kApply || open_.outcome() == Outcome::kSkip;
  return outcome || (assigned_ && !formed_ && !form_failed_) || !reports_.empty();
}

void Session::Send(Message message) {
  if (link_ == Link::kUp) effects_.sends.push_back(std::move(message));
}

void Session::SendHello() {
  Hello hello;
  hello.job = identity_.job;
  hello.member = member_;
  hello.explicit_name = identity_.explicit_name;
  hello.node = identity_.node;
  hello.pid = identity_.pid;
  hello.address = identity_.address;
  hello.able = greeted_able_ = able_;
  hello.spec = identity_.spec;
  hello.highest = highest_;
  greeted_stopped_ = false;
  if (!last_record_) hello.found = identity_.found;
  if (last_record_) {
    Attachment& attachment = hello.attachment.emplace();
    attachment.record = *last_record_;
    attachment.started = started_ && started_->generation == last_record_->generation;
    attachment.committed = committed_;
    attachment.aborted_for = aborted_ ? forming_ : Generation();
    // At a boundary of the generation that runs, not of the one before the record.
    attachment.stopped = greeted_stopped_ = stopped_ && attachment.started;
  }
  effects_.sends.push_back(std::move(hello));
}

void Session::SendHeartbeat(Instant now) {
  Heartbeat beat;
  beat.sequence = lease_.OnHeartbeat(now, prng_);
  beat.generation = started_ ? started_->generation : Generation();
  beat.committed = committed_;
  beat.loss = loss_;
  beat.stage = stage_;
  beat.operations = operations_;
  beat.waiting = waiting_;
  if (!phases_.empty() && phases_.back().until > now) {
    beat.phase = phases_.back().name;
    beat.phase_left = phases_.back().until - now;
  }
  beat.skips = skips_;
  Send(std::move(beat));
}

void Session::FlushReports(Instant now) {
  if (link_ != Link::kUp) return;
  for (PendingReport& report : reports_) {
    // A file counts only when this incarnation is known to be alive still.
    if (report.sent || !lease_.Valid(now)) continue;
    report.sent = true;
    Send(report.message);
  }
  // Of a removal nothing more is heard.
  std::erase_if(reports_, [](const PendingReport& report) {
    return report.sent && std::holds_alternative<CheckpointRemoved>(report.message);
  });
}

void Session::DropReports(const CheckpointKey& key) {
  std::erase_if(reports_, [&](const PendingReport& report) { return report.key == key; });
}

// --- Ends --------------------------------------------------------------------------------------

void Session::Fail(Status why) {
  end_ = std::move(why);
  open_.Close();
  effects_.abort = true;
  effects_.close = true;
  effects_.wake = true;
  link_ = Link::kDown;
}

void Session::DropState() {
  open_.Close();
  assigned_.reset();
  group_id_.reset();
  formed_.reset();
  form_failed_.reset();
  started_.reset();
  last_record_.reset();
  broken_.reset();
  snapshot_due_.reset();
  initial_pending_.reset();
  finished_.reset();
  committed_ = Step();
  agreed_ = wished_ = Wishes();
  holds_state_ = stopped_ = boundary_due_ = stop_due_ = false;
  skips_ = 0;
  stage_ = Stage::kIdle;
}

void Session::Fence(const std::string& reason, Instant now) {
  const Incarnation old = member_.incarnation;
  member_.incarnation = DrawIncarnation(prng_);
  Notice(fmt::format(
      "incarnation {} of worker {} was given up by the coordinator ({}): dropping the "
      "state and joining afresh as {}",
      ToHex(old.value()), member_.worker.value(), reason, ToHex(member_.incarnation.value())));
  // A training thread that already waits in BeginStep() has no reason to say so again.
  const bool waits = stage_ == Stage::kBoundary || stage_ == Stage::kForming;
  DropState();
  if (waits) stage_ = Stage::kBoundary;
  reports_.clear();
  lineage_ = Lineage();
  forming_ = Generation();
  aborted_ = false;
  able_ = able_ && waits;
  effects_.abort = true;
  effects_.close = true;
  effects_.wake = true;
  link_ = Link::kDown;
  redial_at_ = now + backoff_.Next(prng_);
}

}  // namespace muster::worker
