// Hellos that the core accepts, and stores and channels under the control of a test.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/server/driver.h"
#include "protocol/codec.h"
#include "protocol/messages.h"

namespace muster::coordinator {

inline JobSpec TestSpec() {
  JobSpec spec;
  spec.min_workers = 2;
  spec.max_workers = 2;
  spec.steps = 10;
  spec.samples = 100;
  spec.global_batch = 8;
  spec.micro_batches = 4;
  // These clients send no heartbeats of their own: however slow the machine, nobody is to expire.
  spec.failure_timeout = Duration::Seconds(300);
  return spec;
}

inline Hello TestHello(const std::string& job, const std::string& worker,
                       std::uint64_t incarnation = 1) {
  Hello hello;
  hello.job = JobName(job);
  hello.member = {WorkerId(worker), Incarnation(incarnation)};
  hello.node = NodeName("n1");
  hello.pid = 4711;
  hello.address = "127.0.0.1:4000";
  hello.spec = TestSpec();
  return hello;
}

// Holds batches until the test lets them through, or makes them durable at once.
class FakeStore {
 public:
  struct Offer {
    std::vector<Persist> batch;
    PersistDone done;
  };

  PersistFunction Function() {
    return [this](std::vector<Persist> batch, PersistDone done) {
      if (hold) {
        offers.push_back({std::move(batch), std::move(done)});
      } else {
        ++written;
        done(Status());
      }
    };
  }

  // Answers the oldest offer that waits.
  void Answer(const Status& status) {
    const PersistDone done = std::move(offers.front().done);
    offers.erase(offers.begin());
    if (status.ok()) ++written;
    done(status);
  }

  bool hold = false;
  int written = 0;
  std::vector<Offer> offers;
};

// Remembers what was sent.
class FakeChannel : public Channel {
 public:
  void Start(OnMessage /*on_message*/, OnClosed /*on_closed*/) override {}
  using Channel::Send;
  void Send(std::shared_ptr<const std::string> text) override { sent.push_back(*text); }
  void Close() override { closed = true; }
  void Abort(Status /*why*/) override { closed = true; }
  [[nodiscard]] const std::string& peer_address() const override { return address_; }
  [[nodiscard]] const std::string& local_address() const override { return address_; }
  [[nodiscard]] int native_handle() override { return -1; }

  std::vector<std::string> sent;
  bool closed = false;

 private:
  const std::string address_ = "127.0.0.1";
};

}  // namespace muster::coordinator
