#include "worker/cli/checkpoint_command.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "checkpoint/catalog.h"
#include "checkpoint/discover.h"
#include "checkpoint/export.h"
#include "checkpoint/format.h"
#include "checkpoint/io_pool.h"
#include "checkpoint/reader.h"
#include "checkpoint/root_claim.h"
#include "protocol/transport/steady_clock.h"
#include "worker/cli/checkpoint_view.h"
#include "worker/cli/progress_meter.h"
#include "worker/cli/text.h"

namespace muster::cli {
namespace {

using checkpoint::BaseNameOf;
using checkpoint::CatalogEntry;
using checkpoint::FileSystem;
using checkpoint::JoinPath;

// Damaged blocks of one file that are named one by one.
constexpr std::size_t kBlocksNamed = 5;

int Fail(const std::string& message) {
  std::fflush(stdout);
  fmt::print(stderr, "muster: {}\n", Printable(message));
  return 1;
}
int Fail(const Status& status) { return Fail(status.message()); }

// A path that the user gave, taken apart.
struct Place {
  std::string root;
  std::optional<std::string> directory;  // one checkpoint in it; otherwise all are meant
};

Place PlaceOf(const std::string& path) {
  std::string name = BaseNameOf(path);
  std::string full = path;
  if (name == "." || name == "..") {
    // The name that counts is the one that the directory has.
    full = std::filesystem::absolute(path).lexically_normal().string();
    name = BaseNameOf(full);
  }
  if (!checkpoint::ParseDirectoryName(name)) return {path, std::nullopt};
  return {checkpoint::ParentOf(full), name};
}

Result<std::vector<CatalogEntry>> EntriesAt(FileSystem& fs, const Place& place) {
  if (!place.directory) {
    auto entries = checkpoint::ListCheckpoints(fs, place.root);
    if (entries.status().code() != Code::kNotFound) return entries;
    return NotFound(fmt::format(
        "there is no directory {}: name the one that the job has as its checkpoint directory",
        place.root));
  }
  Result<CatalogEntry> entry = checkpoint::LookAt(fs, place.root, *place.directory);
  if (entry.status().code() == Code::kNotFound) {
    return NotFound(
        fmt::format("there is no checkpoint {}: muster checkpoint ls {} lists those "
                    "that are there",
                    JoinPath(place.root, *place.directory), place.root));
  }
  if (!entry.ok()) return entry.status();
  return std::vector<CatalogEntry>{std::move(*entry)};
}

std::string NothingIn(const std::string& root) {
  return fmt::format("no checkpoints in {} (they are directories named s<12 digits>-g<8 digits>)",
                     root);
}

// The one checkpoint that is meant; says which ones there are when it is none.
Result<CatalogEntry> OneAt(FileSystem& fs, const Place& place) {
  Result<std::vector<CatalogEntry>> entries = EntriesAt(fs, place);
  if (!entries.ok()) return entries.status();
  if (place.directory) return std::move(entries->front());
  const auto newest = std::find_if(entries->rbegin(), entries->rend(),
                                   [](const CatalogEntry& entry) { return entry.manifest.ok(); });
  if (newest == entries->rend()) return NotFound(NothingIn(place.root));
  return InvalidArgument(fmt::format("{} is no checkpoint: name one in it; the newest one is {}",
                                     place.root, JoinPath(place.root, newest->directory)));
}

// The same, when it can be read.
Result<CatalogEntry> UsableAt(FileSystem& fs, const Place& place) {
  Result<CatalogEntry> entry = OneAt(fs, place);
  if (!entry.ok() || entry->manifest.ok()) return entry;
  const std::string path = JoinPath(place.root, entry->directory);
  return Status(entry->manifest.status().code(),
                fmt::format("{}: {}; muster checkpoint reindex {} makes a new manifest of whole "
                            "files",
                            path, StateText(place.root, *entry), path));
}

// Since its first file was written; negative when that cannot be seen.
double AgeOf(const std::string& root, const CatalogEntry& entry) {
  std::string path = JoinPath(root, entry.directory);
  if (entry.manifest.ok()) path = JoinPath(path, entry.manifest->record.files.front().name);
  struct stat facts {};
  if (::stat(path.c_str(), &facts) != 0) return -1;
  const double written = static_cast<double>(facts.st_mtim.tv_sec) * 1e3 +
                         static_cast<double>(facts.st_mtim.tv_nsec) / 1e6;
  return std::max(0.0, UnixMillisNow() - written);
}

std::string Bytes(std::int64_t bytes) { return BytesText(static_cast<double>(bytes)); }

// "2 files, 1.5 MiB, 850.0 MiB/s"
std::string WorkText(const CheckpointRecord& record, Duration elapsed) {
  return fmt::format(
      "{}, {}, {}/s", Plural(static_cast<double>(record.files.size()), "file"), Bytes(record.bytes),
      BytesText(static_cast<double>(record.bytes) / std::max(elapsed.ToSeconds(), 1e-6)));
}

// What a verification finds, by file.
class Findings {
 public:
  void Add(Rank rank, const Status& damage) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string>& named = by_rank_[rank].named;
    if (named.size() < kBlocksNamed) {
      named.push_back(damage.message());
    } else {
      ++by_rank_[rank].more;
    }
  }
  // Only after the verification.
  void Print(const std::string& directory) const {
    for (const auto& [rank, damage] : by_rank_) {
      for (const std::string& text : damage.named) Fail(text);
      if (damage.more > 0) {
        Fail(fmt::format("{}: {} of rank {} also", directory,
                         Plural(static_cast<double>(damage.more), "block"), rank.value()));
      }
    }
  }
  [[nodiscard]] std::size_t files() const { return by_rank_.size(); }

 private:
  struct OfFile {
    std::vector<std::string> named;
    std::size_t more = 0;
  };
  std::mutex mutex_;
  std::map<Rank, OfFile> by_rank_;
};

enum class Verdict { kGood, kBad, kSkipped };

Verdict VerifyOne(FileSystem& fs, const Place& place, const CatalogEntry& entry,
                  checkpoint::IoPool& pool) {
  const auto passed_over = [&](const Status& why) {
    return !place.directory && why.code() == Code::kNotFound;
  };
  if (!entry.manifest.ok()) {
    const std::string state = StateText(place.root, entry);
    if (passed_over(entry.manifest.status())) {
      fmt::print("{}: passed over: {}\n", entry.directory, state);
      return Verdict::kSkipped;
    }
    fmt::print("{}: damaged\n", entry.directory);
    Fail(fmt::format("{}: {}", JoinPath(place.root, entry.directory), state));
    return Verdict::kBad;
  }
  const CheckpointRecord& record = entry.manifest->record;
  Findings findings;
  ProgressMeter meter("verifying " + entry.directory, record.bytes);
  checkpoint::ReadOptions read;
  read.pool = &pool;
  read.progress = [&](std::int64_t bytes) { meter.Add(bytes); };
  read.damaged = [&](Rank rank, const Status& damage) { findings.Add(rank, damage); };
  const Status status = checkpoint::VerifyCheckpoint(fs, place.root, record, read);
  meter.Remove();
  if (status.ok()) {
    fmt::print("{}: ok: {}\n", entry.directory, WorkText(record, meter.elapsed()));
    return Verdict::kGood;
  }
  // Retention may have taken it while it was being read.
  const auto manifest = checkpoint::ReadManifest(fs, place.root, entry.directory);
  if (passed_over(manifest.status())) {
    fmt::print("{}: passed over: it was removed meanwhile\n", entry.directory);
    return Verdict::kSkipped;
  }
  fmt::print("{}: damaged\n", entry.directory);
  if (findings.files() == 0) Fail(status);
  findings.Print(entry.directory);
  return Verdict::kBad;
}

// Keeps jobs from writing below the root while the claim lives. An error when one does already;
// null, with a word on stderr, when nobody can tell.
Result<std::unique_ptr<checkpoint::OwnerFile>> KeepJobsOut(const std::string& root) {
  Result<std::unique_ptr<checkpoint::OwnerFile>> claim = checkpoint::OpenOwnerFile(root);
  const Status locked =
      claim.ok() ? (*claim)->Lock(checkpoint::OwnerFile::Hold::kExclusive) : claim.status();
  if (locked.ok()) return claim;
  if (!claim.ok() || locked.code() != Code::kUnavailable) {
    fmt::print(stderr, "muster: make sure that no job writes to {}: {}\n", root, locked.message());
    return std::unique_ptr<checkpoint::OwnerFile>();
  }
  const Result<std::string> text = (*claim)->Read();
  const auto owner = text.ok() ? checkpoint::DecodeOwner(*text) : std::nullopt;
  const std::string who =
      owner ? fmt::format("job {} (process {} on host {})", owner->job, owner->pid, owner->host)
            : "a job";
  return FailedPrecondition(fmt::format(
      "{} is in use by {}: end the job first; --dry-run only looks, and may run beside it", root,
      who));
}

// From what each job would go on whose coordinator has lost its memory.
void PrintWhatJobsFind(FileSystem& fs, const std::string& root) {
  const Result<std::vector<CatalogEntry>> entries = checkpoint::ListCheckpoints(fs, root);
  std::set<std::string> jobs;
  for (const CatalogEntry& entry : entries.ok() ? *entries : std::vector<CatalogEntry>()) {
    if (entry.manifest.ok()) jobs.insert(entry.manifest->record.job);
  }
  for (const std::string& job : jobs) {
    const auto found = checkpoint::DiscoverCheckpoints(fs, root, JobName(job));
    if (!found.ok() || !found->has_value() || (*found)->checkpoints.empty()) continue;
    fmt::print("job {} would go on from step {} if musterd knew nothing of it\n", Printable(job),
               (*found)->checkpoints.back().key.step.value());
  }
}

// Rebuilds one manifest, if that is what it takes.
Verdict ReindexOne(FileSystem& fs, const Place& place, const CatalogEntry& entry, bool write,
                   checkpoint::IoPool& pool) {
  std::optional<ProgressMeter> meter;
  std::optional<CheckpointRecord> record;
  checkpoint::RebuildOptions rebuild;
  rebuild.pool = &pool;
  rebuild.write = write;
  rebuild.found = [&](const CheckpointRecord& found) {
    record = found;
    meter.emplace("verifying " + entry.directory, found.bytes);
  };
  rebuild.progress = [&](std::int64_t bytes) { meter->Add(bytes); };
  const auto digest = checkpoint::RebuildManifest(fs, place.root, entry.directory, rebuild);
  const std::optional<Duration> elapsed =
      meter ? std::optional<Duration>(meter->elapsed()) : std::nullopt;
  meter.reset();
  if (digest.ok()) {
    fmt::print("{}: {}: {}\n", entry.directory, write ? "new manifest" : "would get a new manifest",
               WorkText(*record, *elapsed));
    return Verdict::kGood;
  }
  // A save that died left no manifest, and not all files. One that had a manifest was complete.
  const Status& status = digest.status();
  if (status.code() == Code::kNotFound && entry.manifest.status().code() == Code::kNotFound) {
    fmt::print("left alone: {}\n", Printable(status.message()));
    return Verdict::kSkipped;
  }
  Fail(status);
  return Verdict::kBad;
}

int SetPin(FileSystem& fs, const CheckpointOptions& options, bool pinned) {
  const Place place = PlaceOf(options.path);
  const Result<CatalogEntry> entry = OneAt(fs, place);
  if (!entry.ok()) return Fail(entry.status());
  const Status status = checkpoint::SetPinned(fs, place.root, entry->directory, pinned);
  if (!status.ok()) return Fail(status);
  const std::string path = JoinPath(place.root, entry->directory);
  if (!pinned) {
    fmt::print("{}: not pinned: it goes when newer ones take its place\n", path);
    return 0;
  }
  // Looked at again: a removal that had begun would go on.
  const auto manifest = checkpoint::ReadManifest(fs, place.root, entry->directory);
  if (manifest.ok()) {
    fmt::print("{}: pinned: it stays until muster checkpoint unpin\n", path);
    return 0;
  }
  return Fail(
      fmt::format("{} is pinned, but cannot be loaded: {}", path, manifest.status().message()));
}

}  // namespace

int RunCheckpointLs(FileSystem& fs, const CheckpointOptions& options) {
  const Place place = PlaceOf(options.path);
  Result<std::vector<CatalogEntry>> entries = EntriesAt(fs, place);
  if (!entries.ok()) return Fail(entries.status());
  std::vector<ListedCheckpoint> listed;
  for (CatalogEntry& entry : *entries) {
    const double age = AgeOf(place.root, entry);
    listed.push_back({std::move(entry), age});
  }
  if (options.json) {
    fmt::print("{}", RenderListJson(place.root, listed));
  } else if (listed.empty()) {
    fmt::print("{}\n", NothingIn(place.root));
  } else {
    fmt::print("{}", RenderList(place.root, listed));
  }
  return 0;
}

int RunCheckpointShow(FileSystem& fs, const CheckpointOptions& options) {
  const Place place = PlaceOf(options.path);
  Result<CatalogEntry> entry = UsableAt(fs, place);
  if (!entry.ok()) return Fail(entry.status());
  const double age = AgeOf(place.root, *entry);
  const ListedCheckpoint listed{std::move(*entry), age};
  fmt::print("{}", options.json ? RenderCheckpointJson(place.root, listed)
                                : RenderCheckpoint(place.root, listed, options.tensors));
  return 0;
}

int RunCheckpointVerify(FileSystem& fs, const CheckpointOptions& options) {
  const Place place = PlaceOf(options.path);
  const Result<std::vector<CatalogEntry>> entries = EntriesAt(fs, place);
  if (!entries.ok()) return Fail(entries.status());
  checkpoint::IoPool pool;
  int good = 0;
  int bad = 0;
  for (const CatalogEntry& entry : *entries) {
    const Verdict verdict = VerifyOne(fs, place, entry, pool);
    good += verdict == Verdict::kGood ? 1 : 0;
    bad += verdict == Verdict::kBad ? 1 : 0;
    std::fflush(stdout);
  }
  if (good + bad == 0) {
    return Fail(entries->empty() ? NothingIn(place.root)
                                 : fmt::format("no finished checkpoint in {}", place.root));
  }
  if (good + bad > 1) fmt::print("{} good, {} damaged\n", Plural(good, "checkpoint"), bad);
  return bad > 0 ? 1 : 0;
}

int RunCheckpointReindex(FileSystem& fs, const CheckpointOptions& options) {
  const Place place = PlaceOf(options.path);
  const Result<std::vector<CatalogEntry>> entries = EntriesAt(fs, place);
  if (!entries.ok()) return Fail(entries.status());
  if (entries->empty()) return Fail(NothingIn(place.root));
  std::unique_ptr<checkpoint::OwnerFile> claim;
  if (!options.dry_run) {
    auto kept_out = KeepJobsOut(place.root);
    if (!kept_out.ok()) return Fail(kept_out.status());
    claim = std::move(*kept_out);
  }
  checkpoint::IoPool pool;
  int good = 0;
  int rebuilt = 0;
  int bad = 0;
  std::string newest;
  for (const CatalogEntry& entry : *entries) {
    if (entry.manifest.ok()) {
      ++good;
      newest = entry.directory;
      continue;
    }
    const Verdict verdict = ReindexOne(fs, place, entry, !options.dry_run, pool);
    if (verdict == Verdict::kGood) {
      ++rebuilt;
      newest = entry.directory;
    }
    bad += verdict == Verdict::kBad ? 1 : 0;
    std::fflush(stdout);
  }
  fmt::print("{} with a good manifest, {} {}, {} damaged\n", Plural(good, "checkpoint"), rebuilt,
             options.dry_run ? "to get a new one" : "got a new one", bad);
  if (!newest.empty()) {
    fmt::print("{} can be loaded, the newest is {}\n", Plural(good + rebuilt, "checkpoint"),
               JoinPath(place.root, newest));
    PrintWhatJobsFind(fs, place.root);
  }
  return bad > 0 ? 1 : 0;
}

int RunCheckpointExport(FileSystem& fs, const CheckpointOptions& options) {
  const Place place = PlaceOf(options.path);
  const Result<CatalogEntry> entry = UsableAt(fs, place);
  if (!entry.ok()) return Fail(entry.status());
  const CheckpointRecord& record = entry->manifest->record;
  const bool one_file = options.target.ends_with(".safetensors");
  const auto plan = checkpoint::PlanExport(
      record, options.target, {one_file ? 0 : options.part_bytes, options.copy_aliases});
  if (!plan.ok()) return Fail(plan.status());
  checkpoint::IoPool pool;
  {
    ProgressMeter meter("exporting " + entry->directory, plan->data_bytes);
    checkpoint::ExportRun run;
    run.force = options.force;
    run.progress = [&](std::int64_t bytes) { meter.Add(bytes); };
    const Status status = checkpoint::Export(fs, place.root, record, *plan, pool, run);
    meter.Remove();
    if (!status.ok()) return Fail(status);
  }
  fmt::print("{}", RenderExport(options.target, record, *plan));
  return 0;
}

int RunCheckpointPin(FileSystem& fs, const CheckpointOptions& options) {
  return SetPin(fs, options, true);
}

int RunCheckpointUnpin(FileSystem& fs, const CheckpointOptions& options) {
  return SetPin(fs, options, false);
}

}  // namespace muster::cli
