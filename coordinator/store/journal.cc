#include "coordinator/store/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "coordinator/store/data_directory.h"
#include "protocol/codec.h"

namespace muster::store {
namespace {

constexpr std::size_t kPlaceBytes = 8;

// Most significant byte first, so that keys sort as numbers do.
void AppendBigEndian(std::uint64_t value, std::size_t bytes, std::string* out) {
  for (std::size_t i = bytes; i-- > 0;) {
    out->push_back(static_cast<char>((value >> (8 * i)) & 0xFFU));
  }
}

std::uint64_t ReadBigEndian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (const char byte : bytes) value = (value << 8U) | static_cast<unsigned char>(byte);
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
  AppendBigEndian(static_cast<std::uint64_t>(key.step.value()), 8, &bytes);
  AppendBigEndian(static_cast<std::uint64_t>(key.generation.value()), 8, &bytes);
  return bytes;
}

// Value of a checkpoint: its place in the order of commit, then the entry as JSON.
Result<std::pair<std::uint64_t, CheckpointEntry>> DecodeStored(const std::string& directory,
                                                               const std::string& value) {
  if (value.size() < kPlaceBytes) return Damaged(directory, "a checkpoint's entry is cut off");
  Result<CheckpointEntry> entry =
      DecodeCheckpointEntry(std::string_view(value).substr(kPlaceBytes));
  if (!entry.ok()) return Damaged(directory, entry.status().message());
  return std::pair(ReadBigEndian(std::string_view(value).substr(0, kPlaceBytes)),
                   std::move(entry).value());
}

}  // namespace

// The changes of one Write, and what the places will be once it has succeeded.
struct Journal::Plan {
  std::vector<KeyChange> changes;
  Places places;
  std::uint64_t next_place = 1;
};

Result<std::unique_ptr<Journal>> Journal::Open(const std::string& directory) {
  Result<std::unique_ptr<Database>> database = Database::Open(directory);
  if (!database.ok()) return database.status();
  std::unique_ptr<Journal> journal(new Journal(std::move(database).value()));
  MUSTER_RETURN_IF_ERROR(journal->LoadPlaces());
  return journal;
}

Status Journal::LoadPlaces() {
  const auto all = database_->Scan(Family::kCheckpoints, "");
  if (!all.ok()) return all.status();
  for (const auto& [key, value] : *all) {
    if (value.size() < kPlaceBytes) {
      return Damaged(directory(), "a checkpoint's entry is cut off");
    }
    const std::uint64_t place = ReadBigEndian(std::string_view(value).substr(0, kPlaceBytes));
    places_[key] = place;
    next_place_ = std::max(next_place_, place + 1);
  }
  return {};
}

Result<std::vector<StoredJob>> Journal::LoadAll() const {
  const auto records = database_->Scan(Family::kJobs, "");
  if (!records.ok()) return records.status();
  std::vector<StoredJob> jobs;
  for (const auto& [name, value] : *records) {
    Result<JobRecord> record = DecodeJobRecord(value);
    if (!record.ok()) {
      return Damaged(directory(), fmt::format("job {}: {}", name, record.status().message()));
    }
    Result<std::vector<CheckpointEntry>> checkpoints = CheckpointsOf(JobName(name));
    if (!checkpoints.ok()) return checkpoints.status();
    jobs.push_back({std::move(record).value(), std::move(checkpoints).value()});
  }
  return jobs;
}

Status Journal::Add(const PutJob& put, Plan* plan) const {
  std::string value = EncodeJobRecord(put.record);
  // What cannot be read back would keep the coordinator from ever starting again.
  const Result<JobRecord> back = DecodeJobRecord(value);
  if (!back.ok()) return back.status();
  plan->changes.push_back({Family::kJobs, put.record.job.value(), std::move(value)});
  return {};
}

Status Journal::Add(const PutCheckpoint& put, Plan* plan) const {
  if (put.entry.record.job != put.job.value()) {
    return InvalidArgument(
        fmt::format("checkpoint_entry.record.job: is {}, the checkpoint is put "
                    "under job {}",
                    put.entry.record.job, put.job.value()));
  }
  const std::string text = EncodeCheckpointEntry(put.entry);
  const Result<CheckpointEntry> back = DecodeCheckpointEntry(text);
  if (!back.ok()) return back.status();
  std::string key = KeyOf(put.job, put.entry.record.key);
  const auto [place, is_new] = plan->places.try_emplace(key, plan->next_place);
  if (is_new) ++plan->next_place;
  std::string value;
  AppendBigEndian(place->second, kPlaceBytes, &value);
  plan->changes.push_back({Family::kCheckpoints, std::move(key), value + text});
  return {};
}

Status Journal::Add(const DropCheckpoint& drop, Plan* plan) const {
  std::string key = KeyOf(drop.job, drop.key);
  plan->places.erase(key);
  plan->changes.push_back({Family::kCheckpoints, std::move(key), std::nullopt});
  return {};
}

Status Journal::Write(const std::vector<const Batch*>& batches) {
  Plan plan{.changes = {}, .places = places_, .next_place = next_place_};
  for (const Batch* batch : batches) {
    for (const Change& change : *batch) {
      MUSTER_RETURN_IF_ERROR(std::visit([&](const auto& c) { return Add(c, &plan); }, change));
    }
  }
  if (plan.changes.empty()) return {};
  // Even a write that fails may turn out to be there later, so its places are not given out again.
  next_place_ = plan.next_place;
  MUSTER_RETURN_IF_ERROR(database_->Write(plan.changes));
  places_ = std::move(plan.places);
  return {};
}

Result<std::optional<CheckpointEntry>> Journal::FindCheckpoint(const JobName& job,
                                                               const CheckpointKey& key) const {
  const Result<std::optional<std::string>> value =
      database_->Get(Family::kCheckpoints, KeyOf(job, key));
  if (!value.ok()) return value.status();
  if (!value->has_value()) return std::optional<CheckpointEntry>();
  auto stored = DecodeStored(directory(), **value);
  if (!stored.ok()) return stored.status();
  return std::optional<CheckpointEntry>(std::move(stored->second));
}

Result<std::vector<CheckpointEntry>> Journal::CheckpointsOf(const JobName& job) const {
  const auto all = database_->Scan(Family::kCheckpoints, PrefixOf(job));
  if (!all.ok()) return all.status();
  std::vector<std::pair<std::uint64_t, CheckpointEntry>> placed;
  for (const auto& [key, value] : *all) {
    auto stored = DecodeStored(directory(), value);
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
