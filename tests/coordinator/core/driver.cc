#include "tests/coordinator/core/driver.h"

#include <fmt/format.h>

#include <algorithm>

namespace muster::coordinator {

Driver::Driver(const Config& config) : config_(config) { Restart(true); }

void Driver::Restart(bool empty) {
  if (empty) store_.clear();
  std::vector<StoredJob> stored;
  for (const auto& [name, job] : store_) stored.push_back(job);
  core_ = std::make_unique<Coordinator>(config_, ++lives_, std::move(stored), now_);
  Collect();
}

void Driver::Handle(const Input& input) {
  core_->Handle(input, now_);
  Collect();
}

void Driver::Receive(SessionId session, Message message) {
  Handle(Received{session, std::move(message), "10.0.0.1"});
}

void Driver::RunUntil(Instant until, Duration period, const std::function<void()>& pulse) {
  Instant next_pulse = now_ + period;
  for (;;) {
    const Instant deadline = std::max(now_, core_->NextDeadline());
    const Instant next = std::min({deadline, next_pulse, until});
    const bool end = next == until && deadline > until;
    now_ = next;
    if (next == next_pulse) {
      pulse();
      next_pulse = now_ + period;
    }
    if (core_->NextDeadline() <= now_) {
      Handle(Tick{});
      // A deadline that stays in the past would make the server spin.
      if (core_->NextDeadline() <= now_) {
        Violation(fmt::format("deadline {} ns is not after the tick at {} ns",
                              core_->NextDeadline().nanos(), now_.nanos()));
        return;
      }
    }
    if (end) return;
  }
}

void Driver::Apply(const Persist& persist) {
  if (const auto* job = std::get_if<PutJob>(&persist)) {
    StoredJob& stored = store_[job->record.job];
    if (job->record.highest < stored.record.highest) Violation("a generation number went back");
    stored.record = job->record;
  } else if (const auto* put = std::get_if<PutCheckpoint>(&persist)) {
    auto& entries = store_[put->job].checkpoints;
    const auto it = std::ranges::find_if(
        entries, [&](const auto& entry) { return entry.record.key == put->entry.record.key; });
    if (it == entries.end()) {
      entries.push_back(put->entry);
    } else {
      *it = put->entry;
    }
  } else if (const auto* drop = std::get_if<DropCheckpoint>(&persist)) {
    std::erase_if(store_[drop->job].checkpoints,
                  [&](const auto& entry) { return entry.record.key == drop->key; });
  }
}

// What a worker acts on must not be forgotten by a crash right after it was sent.
void Driver::CheckSend(const Send& send) {
  const auto durable = [&](auto&& predicate) {
    return std::ranges::any_of(store_, [&](const auto& entry) { return predicate(entry.second); });
  };
  if (const auto* m = std::get_if<Interrupt>(&send.message)) {
    if (!durable([&](const StoredJob& s) { return s.record.highest >= m->generation; })) {
      Violation(fmt::format("interrupt {} before its number is durable", m->generation.value()));
    }
  } else if (const auto* a = std::get_if<Assign>(&send.message)) {
    if (!durable([&](const StoredJob& s) { return s.record.latest == *a->record; })) {
      Violation(fmt::format("assign {} before it is durable", a->record->generation.value()));
    }
  } else if (const auto* s = std::get_if<Start>(&send.message)) {
    const auto started = [&](const StoredJob& job) {
      return job.record.started && job.record.started->generation == s->generation;
    };
    if (!durable(started)) {
      Violation(fmt::format("start {} before it is durable", s->generation.value()));
    }
  } else if (const auto* c = std::get_if<CheckpointAnnounced>(&send.message)) {
    const auto announced = [&](const StoredJob& job) {
      return std::ranges::any_of(job.checkpoints, [&](const auto& entry) {
        return entry.record.key == c->key && (entry.state == CheckpointState::kAnnounced ||
                                              entry.state == CheckpointState::kDeleting);
      });
    };
    if (!durable(announced)) Violation("a checkpoint is announced before that is durable");
  } else if (const auto* e = std::get_if<Ended>(&send.message)) {
    if (!e->left && !durable([&](const StoredJob& job) { return job.record.end == e->end; })) {
      Violation("ended before the end is durable");
    }
  }
}

void Driver::Collect() {
  if (!core_->CountsAreExact()) Violation("the counts differ from what they count");
  Effects fresh = core_->TakeEffects();
  for (const Persist& persist : fresh.persist) Apply(persist);
  for (const Send& send : fresh.sends) CheckSend(send);
  const auto append = [](auto& to, auto& from) {
    std::move(from.begin(), from.end(), std::back_inserter(to));
  };
  append(effects_.persist, fresh.persist);
  append(effects_.sends, fresh.sends);
  append(effects_.closes, fresh.closes);
  append(effects_.events, fresh.events);
}

}  // namespace muster::coordinator
