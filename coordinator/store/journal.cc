#include "coordinator/store/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "checkpoint/digest.h"
#include "coordinator/store/data_directory.h"
#include "protocol/codec.h"

namespace muster::store {
namespace {

constexpr std::size_t kNumberBytes = 8;
// In front of the JSON of a job, and of a checkpoint's entry.
constexpr std::size_t kJobHead = kNumberBytes;
constexpr std::size_t kEntryHead = 3 * kNumberBytes;
constexpr char kEntries = 'e';
constexpr char kFiles = 'f';

// Most significant byte first, so that keys sort as numbers do.
void AppendBigEndian(std::uint64_t value, std::size_t bytes, std::string* out) {
  for (std::size_t i = bytes; i-- > 0;) {
    out->push_back(static_cast<char>((value >> (8 * i)) & 0xFFU));
  }
}

// The number at `index` of those in front. REQUIRES: it is there.
std::uint64_t NumberAt(std::string_view bytes, std::size_t index) {
  std::uint64_t value = 0;
  for (const char byte : bytes.substr(index * kNumberBytes, kNumberBytes))
    value = (value << 8U) | static_cast<unsigned char>(byte);
  return value;
}

// The name's length goes first: no job's prefix is the beginning of another's, whatever the names.
std::string PrefixOf(const JobName& job) {
  std::string prefix;
  AppendBigEndian(job.value().size(), 4, &prefix);
  return prefix + job.value();
}

std::string KeyOf(const JobName& job, const CheckpointKey& key) {
  std::string bytes = PrefixOf(job);
  AppendBigEndian(static_cast<std::uint64_t>(key.step.value()), kNumberBytes, &bytes);
  AppendBigEndian(static_cast<std::uint64_t>(key.generation.value()), kNumberBytes, &bytes);
  return bytes;
}

Status CutOff(const std::string& directory, std::string_view what) {
  return Damaged(directory, fmt::format("{} is cut off", what));
}

// In front of what was said of a part of this job.
Status OfJob(const Status& status, std::string_view job) {
  return {status.code(), fmt::format("job {}: {}", job, status.message())};
}

}  // namespace

// The changes of one Write, and what will be known once it has succeeded.
struct Journal::Plan {
  std::vector<KeyChange> changes;
  std::vector<std::string> touched;  // checkpoints whose file lists were written or removed
  Known known;
};

Result<std::unique_ptr<Journal>> Journal::Open(const std::string& directory, rocksdb::Env* env) {
  Result<std::unique_ptr<Database>> database = Database::Open(directory, env);
  if (!database.ok()) return database.status();
  std::unique_ptr<Journal> journal(new Journal(std::move(database).value()));
  MUSTER_RETURN_IF_ERROR(journal->LoadKnown());
  return journal;
}

Status Journal::LoadKnown() {
  const auto jobs = database_->Scan(Family::kJobs, "");
  if (!jobs.ok()) return jobs.status();
  for (const auto& [key, value] : *jobs) {
    if (value.size() < kJobHead) return CutOff(directory(), fmt::format("job {}", key));
    known_.layouts.Count(known_.jobs[key] = NumberAt(value, 0));
  }
  const auto entries = database_->Scan(Family::kCheckpoints, {kEntries});
  if (!entries.ok()) return entries.status();
  for (const auto& [key, value] : *entries) {
    if (value.size() < kEntryHead) return CutOff(directory(), "a checkpoint's entry");
    const Checkpoint checkpoint = {NumberAt(value, 0), NumberAt(value, 1), NumberAt(value, 2)};
    known_.layouts.Count(checkpoint.layout);
    known_.next_place = std::max(known_.next_place, checkpoint.place + 1);
    known_.checkpoints[key.substr(1)] = checkpoint;
  }
  return {};
}

Result<std::vector<TensorSpec>> Journal::ReadLayout(LayoutId id, Cache* cache) const {
  if (const auto it = cache->find(id); it != cache->end()) return it->second;
  Result<std::vector<TensorSpec>> tensors = Layouts::Read(*database_, id);
  if (tensors.ok()) cache->emplace(id, *tensors);
  return tensors;
}

Result<JobRecord> Journal::ReadJob(const std::string& value, Cache* cache) const {
  if (value.size() < kJobHead) return CutOff(directory(), "its record");
  Result<JobRecord> record = DecodeJobRecord(std::string_view(value).substr(kJobHead));
  if (!record.ok()) return Damaged(directory(), record.status().message());
  Result<std::vector<TensorSpec>> tensors = ReadLayout(NumberAt(value, 0), cache);
  if (!tensors.ok()) return tensors.status();
  record->spec.tensors = std::move(tensors).value();
  return record;
}

Result<std::pair<std::uint64_t, CheckpointEntry>> Journal::ReadCheckpoint(const std::string& key,
                                                                          const std::string& value,
                                                                          Cache* cache) const {
  if (value.size() < kEntryHead) return CutOff(directory(), "a checkpoint's entry");
  Result<CheckpointEntry> entry = DecodeCheckpointEntry(std::string_view(value).substr(kEntryHead));
  if (!entry.ok()) return Damaged(directory(), entry.status().message());
  const std::string& name = entry->record.directory;
  Result<std::vector<TensorSpec>> tensors = ReadLayout(NumberAt(value, 1), cache);
  if (!tensors.ok()) return tensors.status();
  const auto text = database_->Get(Family::kCheckpoints, kFiles + key);
  if (!text.ok()) return text.status();
  if (!text->has_value() || checkpoint::DigestOf(**text) != NumberAt(value, 2)) {
    return Damaged(directory(), fmt::format("the file list of checkpoint {} is {}", name,
                                            text->has_value() ? "another one" : "missing"));
  }
  Result<std::vector<FileRecord>> files = DecodeFiles(**text);
  if (!files.ok()) {
    return Damaged(directory(), fmt::format("checkpoint {}: {}", name, files.status().message()));
  }
  entry->record.tensors = std::move(tensors).value();
  entry->record.files = std::move(files).value();
  return std::pair(NumberAt(value, 0), std::move(entry).value());
}

Result<std::vector<StoredJob>> Journal::LoadAll() const {
  const auto records = database_->Scan(Family::kJobs, "");
  if (!records.ok()) return records.status();
  std::vector<StoredJob> jobs;
  Cache cache;
  for (const auto& [name, value] : *records) {
    Result<JobRecord> record = ReadJob(value, &cache);
    if (!record.ok()) return OfJob(record.status(), name);
    Result<std::vector<CheckpointEntry>> checkpoints = CheckpointsOf(JobName(name), &cache);
    if (!checkpoints.ok()) return OfJob(checkpoints.status(), name);
    jobs.push_back({std::move(record).value(), std::move(checkpoints).value()});
  }
  return jobs;
}

Status Journal::Add(const PutJob& put, Plan* plan) {
  const Result<LayoutId> layout = plan->known.layouts.Refer(put.record.spec.tensors);
  if (!layout.ok()) return layout.status();
  JobRecord record = put.record;
  record.spec.tensors.clear();
  const std::string text = EncodeJobRecord(record);
  // What cannot be read back would keep the coordinator from ever starting again.
  const Result<JobRecord> back = DecodeJobRecord(text);
  if (!back.ok()) return back.status();
  const std::string& key = put.record.job.value();
  const auto [known, is_new] = plan->known.jobs.try_emplace(key, *layout);
  if (!is_new) plan->known.layouts.Release(std::exchange(known->second, *layout));
  std::string value;
  AppendBigEndian(*layout, kNumberBytes, &value);
  plan->changes.push_back({Family::kJobs, key, value + text});
  return {};
}

Status Journal::Add(const PutCheckpoint& put, Plan* plan) {
  if (put.entry.record.job != put.job.value()) {
    return InvalidArgument(
        fmt::format("checkpoint_entry.record.job: is {}, the checkpoint is put "
                    "under job {}",
                    put.entry.record.job, put.job.value()));
  }
  const Result<LayoutId> layout = plan->known.layouts.Refer(put.entry.record.tensors);
  if (!layout.ok()) return layout.status();
  CheckpointEntry entry = put.entry;
  entry.record.tensors.clear();
  // The files too: they have to suit the rest of the record.
  const Result<CheckpointEntry> back = DecodeCheckpointEntry(EncodeCheckpointEntry(entry));
  if (!back.ok()) return back.status();
  std::string files = EncodeFiles(std::exchange(entry.record.files, {}));
  const std::uint64_t digest = checkpoint::DigestOf(files);

  const std::string key = KeyOf(put.job, put.entry.record.key);
  const auto [it, is_new] = plan->known.checkpoints.try_emplace(key);
  Checkpoint& known = it->second;
  if (is_new) {
    known.place = plan->known.next_place++;
  } else {
    plan->known.layouts.Release(known.layout);
  }
  known.layout = *layout;
  if (known.files != digest) {
    plan->changes.push_back({Family::kCheckpoints, kFiles + key, std::move(files)});
    plan->touched.push_back(key);
    known.files = digest;
  }
  std::string value;
  for (const std::uint64_t number : {known.place, known.layout, digest}) {
    AppendBigEndian(number, kNumberBytes, &value);
  }
  plan->changes.push_back(
      {Family::kCheckpoints, kEntries + key, value + EncodeCheckpointEntry(entry)});
  return {};
}

Status Journal::Add(const DropCheckpoint& drop, Plan* plan) {
  const std::string key = KeyOf(drop.job, drop.key);
  if (const auto it = plan->known.checkpoints.find(key); it != plan->known.checkpoints.end()) {
    plan->known.layouts.Release(it->second.layout);
    plan->known.checkpoints.erase(it);
  }
  plan->changes.push_back({Family::kCheckpoints, kEntries + key, std::nullopt});
  plan->changes.push_back({Family::kCheckpoints, kFiles + key, std::nullopt});
  plan->touched.push_back(key);
  return {};
}

Status Journal::Write(const std::vector<const Batch*>& batches) {
  Plan plan{.changes = {}, .touched = {}, .known = known_};
  for (const Batch* batch : batches) {
    for (const Change& change : *batch) {
      MUSTER_RETURN_IF_ERROR(std::visit([&](const auto& c) { return Add(c, &plan); }, change));
    }
  }
  if (plan.changes.empty()) return {};
  plan.known.layouts.AppendChanges(&plan.changes);
  const Status written = database_->Write(plan.changes);
  if (written.ok()) {
    known_ = std::move(plan.known);
  } else {
    Doubt(plan);
  }
  return written;
}

// Even a write that fails may turn out to be there later: its places are not given out again, and
// what it replaced or removed is written again before anything new relies on it.
void Journal::Doubt(const Plan& plan) {
  known_.next_place = plan.known.next_place;
  known_.layouts.Doubt(plan.known.layouts);
  for (const std::string& key : plan.touched) {
    if (const auto it = known_.checkpoints.find(key); it != known_.checkpoints.end()) {
      it->second.files.reset();
    }
  }
}

Result<std::optional<CheckpointEntry>> Journal::FindCheckpoint(const JobName& job,
                                                               const CheckpointKey& key) const {
  const std::string bytes = KeyOf(job, key);
  const Result<std::optional<std::string>> value =
      database_->Get(Family::kCheckpoints, kEntries + bytes);
  if (!value.ok()) return value.status();
  if (!value->has_value()) return std::optional<CheckpointEntry>();
  Cache cache;
  auto stored = ReadCheckpoint(bytes, **value, &cache);
  if (!stored.ok()) return stored.status();
  return std::optional<CheckpointEntry>(std::move(stored->second));
}

Result<std::vector<CheckpointEntry>> Journal::CheckpointsOf(const JobName& job) const {
  Cache cache;
  return CheckpointsOf(job, &cache);
}

Result<std::vector<CheckpointEntry>> Journal::CheckpointsOf(const JobName& job,
                                                            Cache* cache) const {
  const auto all = database_->Scan(Family::kCheckpoints, kEntries + PrefixOf(job));
  if (!all.ok()) return all.status();
  std::vector<std::pair<std::uint64_t, CheckpointEntry>> placed;
  for (const auto& [key, value] : *all) {
    auto stored = ReadCheckpoint(key.substr(1), value, cache);
    if (!stored.ok()) return stored.status();
    placed.push_back(std::move(stored).value());
  }
  std::sort(placed.begin(), placed.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<CheckpointEntry> entries;
  entries.reserve(placed.size());
  for (auto& [place, entry] : placed) entries.push_back(std::move(entry));
  return entries;
}

}  // namespace muster::store
