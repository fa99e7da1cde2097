#include "coordinator/server/store_adapter.h"

#include <utility>
#include <variant>

namespace muster::coordinator {
namespace {

store::Change ToChange(const Persist& persist) {
  if (const auto* job = std::get_if<PutJob>(&persist)) return store::PutJob{job->record};
  if (const auto* put = std::get_if<PutCheckpoint>(&persist)) {
    return store::PutCheckpoint{put->job, put->entry};
  }
  const auto& drop = std::get<DropCheckpoint>(persist);
  return store::DropCheckpoint{drop.job, drop.key};
}

}  // namespace

Result<OpenedStore> OpenStore(const std::string& data_directory) {
  Result<std::unique_ptr<store::Journal>> journal = store::Journal::Open(data_directory);
  if (!journal.ok()) return journal.status();
  Result<std::vector<store::StoredJob>> jobs = (*journal)->LoadAll();
  if (!jobs.ok()) return jobs.status();
  OpenedStore opened;
  for (store::StoredJob& job : *jobs) {
    opened.jobs.push_back({std::move(job.record), std::move(job.checkpoints)});
  }
  opened.writer = std::make_unique<store::StoreWriter>(std::move(journal).value());
  return Result<OpenedStore>(std::move(opened));
}

PersistFunction PersistThrough(store::StoreWriter& writer) {
  return [&writer](const std::vector<Persist>& batch, const PersistDone& done) {
    store::Batch changes;
    changes.reserve(batch.size());
    for (const Persist& persist : batch) changes.push_back(ToChange(persist));
    // The driver offers one batch at a time, and a failed one again: no other waits behind it.
    writer.Resume();
    const Status queued = writer.Enqueue(std::move(changes), done);
    if (!queued.ok()) done(queued);
  };
}

}  // namespace muster::coordinator
