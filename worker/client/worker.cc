#include "worker/client/worker.h"

#include <utility>

#include "worker/client/runner.h"

namespace muster {

void TrainingStep::Add(const MicroBatch& batch, std::span<const float> gradient,
                       Contribution contribution) {
  runner_.Add(*this, batch, gradient, contribution);
}
void TrainingStep::Add(const MicroBatch& batch, DeviceSpan<const float> gradient,
                       Contribution contribution, DeviceStream& stream) {
  runner_.AddPart(*this, batch, 0, gradient, stream);
  runner_.Complete(*this, batch, contribution);
}
void TrainingStep::AddPart(const MicroBatch& batch, std::int64_t first,
                           DeviceSpan<const float> part, DeviceStream& stream) {
  runner_.AddPart(*this, batch, first, part, stream);
}
void TrainingStep::Add(const MicroBatch& batch, Contribution contribution) {
  runner_.Complete(*this, batch, contribution);
}
bool TrainingStep::Reduce() { return runner_.Reduce(*this); }
Outcome TrainingStep::Commit() { return runner_.Commit(*this); }

PhaseScope::PhaseScope(PhaseScope&& other) noexcept
    : runner_(std::exchange(other.runner_, nullptr)) {}
PhaseScope::~PhaseScope() {
  if (runner_ != nullptr) runner_->EndPhase();
}

Result<Worker> Worker::Join(const WorkerOptions& options, TrainingState& state) {
  Result<std::unique_ptr<worker::Runner>> runner = worker::Runner::Start(options, state.table_);
  if (!runner.ok()) return runner.status();
  return Worker(std::move(*runner));
}

Worker::Worker(std::unique_ptr<worker::Runner> runner) : runner_(std::move(runner)) {}
Worker::Worker(Worker&&) noexcept = default;
Worker::~Worker() = default;

TrainingStep* Worker::BeginStep() { return runner_->BeginStep(); }
Status Worker::Finish() { return runner_->Finish(); }
void Worker::RequestLeave() const noexcept { runner_->RequestLeave(); }
PhaseScope Worker::Phase(const std::string& name, Duration limit) {
  runner_->BeginPhase(name, limit);
  return PhaseScope(runner_.get());
}
std::vector<MicroBatch> Worker::Upcoming(int count) const { return runner_->Upcoming(count); }
Status Worker::status() const { return runner_->status(); }
Rank Worker::rank() const { return runner_->rank(); }
std::int32_t Worker::world_size() const { return runner_->world_size(); }
Generation Worker::generation() const { return runner_->generation(); }
Lineage Worker::lineage() const { return runner_->lineage(); }
Step Worker::committed() const { return runner_->committed(); }
const std::string& Worker::name() const { return runner_->name(); }

}  // namespace muster
