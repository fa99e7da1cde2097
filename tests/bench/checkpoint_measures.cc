#include "tests/bench/checkpoint_measures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "checkpoint/format.h"
#include "checkpoint/layout.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "tests/bench/commit_path.h"
#include "tests/bench/raw_disk.h"
#include "worker/client/snapshot.h"
#include "worker/client/state_table.h"

namespace muster::bench {
namespace {

using checkpoint::AlignedBuffer;
using checkpoint::JoinPath;

// Of the synthetic checkpoints of which only the records exist.
constexpr std::int32_t kRanks = 10'000;
constexpr std::int32_t kTensors = 10'000;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double GigabytesPerSecond(std::int64_t bytes, double seconds) {
  return static_cast<double>(bytes) / 1e9 / seconds;
}

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// Writes the checkpoint of `step`, from one rank's data, with everything that makes it durable.
Result<CheckpointRecord> SaveOne(Setup& setup, std::int64_t step, const AlignedBuffer& data) {
  const checkpoint::ShardPlan plan = PlanOf(setup.tensors, step, 0, 1);
  Result<FileRecord> file =
      checkpoint::WriteShard(setup.fs, setup.directory, plan, data, setup.pool);
  if (!file.ok()) return file.status();
  CheckpointRecord record = RecordOf(setup.tensors, step, {*std::move(file)});
  const auto digest = checkpoint::WriteManifest(setup.fs, setup.directory, record);
  if (!digest.ok()) return digest.status();
  return record;
}

void Remove(const Setup& setup, const std::string& name) {
  std::filesystem::remove_all(JoinPath(setup.directory, name));
}

// Tries each setting twice and returns the fastest.
Result<RawSetting> BestSetting(const std::function<Result<double>(const RawSetting&)>& measure) {
  RawSetting best;
  double best_seconds = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 2; ++round) {
    for (const RawSetting& setting : RawSettings()) {
      const Result<double> seconds = measure(setting);
      if (!seconds.ok()) return seconds.status();
      if (*seconds >= best_seconds) continue;
      best_seconds = *seconds;
      best = setting;
    }
  }
  return best;
}

// What `work` needs at its peak beyond what the process has before, in bytes; -1 when this system
// does not tell.
std::int64_t PeakBeyond(const std::function<void()>& work) {
  const auto field = [](const std::string& name) -> std::int64_t {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;) {
      std::int64_t kilobytes = 0;
      if (word == name && status >> kilobytes) return kilobytes * 1024;
    }
    return -1;
  };
  std::ofstream reset("/proc/self/clear_refs");
  reset << 5 << std::flush;  // the peak becomes the present size
  if (!reset) return -1;
  const std::int64_t before = field("VmRSS:");
  work();
  const std::int64_t peak = field("VmHWM:");
  return before < 0 || peak < 0 ? -1 : std::max<std::int64_t>(0, peak - before);
}

}  // namespace

Status MeasureStall(Setup& setup) {
  worker::StateTable table;
  for (std::size_t i = 0; i < setup.tensors.size(); ++i) {
    auto slot = std::make_shared<worker::TensorSlot>();
    slot->spec = setup.tensors[i];
    slot->spec.cut_dimension = kReplicated;  // one rank holds everything, in memory of the user's
    slot->memory = setup.live.of(i);
    table.Add(std::move(slot));
  }
  const checkpoint::ShardPlan plan = PlanOf(table.Specs(), 1, 0, 1);
  const std::span<std::byte> all = setup.live.all();
  AlignedBuffer snapshot;
  AlignedBuffer copy;
  MUSTER_RETURN_IF_ERROR(TakeSnapshot(table, plan, setup.pool, &snapshot));
  MUSTER_RETURN_IF_ERROR(copy.Resize(std::ssize(all)));
  std::vector<double> ours;
  std::vector<double> plain;
  for (int i = 0; i < setup.repeats; ++i) {
    const double begun = NowSeconds();
    std::memcpy(copy.span().data(), all.data(), all.size());
    const double between = NowSeconds();
    MUSTER_RETURN_IF_ERROR(TakeSnapshot(table, plan, setup.pool, &snapshot));
    plain.push_back(between - begun);
    ours.push_back(NowSeconds() - between);
  }
  setup.report["stall_s"] = Median(ours);
  setup.report["stall_ratio"] = Median(ours) / Median(plain);
  Say(fmt::format("stall    {:.1f} ms, {:.2f} of a memcpy of the same bytes ({:.1f} GB/s)",
                  Median(ours) * 1e3, Median(ours) / Median(plain),
                  GigabytesPerSecond(std::ssize(all), Median(plain))));
  return {};
}

Status MeasureWrite(Setup& setup) {
  AlignedBuffer data;
  MUSTER_RETURN_IF_ERROR(GatherShard(setup.live, PlanOf(setup.tensors, 1, 0, 1), &data));
  const std::string raw_path = JoinPath(setup.directory, "raw");
  const auto write_raw = [&](const RawSetting& setting) {
    const Result<double> seconds = RawWrite(raw_path, data.padded(), setting);
    Remove(setup, "raw");
    return seconds;
  };
  const Result<RawSetting> best = BestSetting(write_raw);
  if (!best.ok()) return best.status();
  std::vector<double> ours;
  std::vector<double> raw;
  for (int i = 0; i < setup.repeats; ++i) {
    const Result<double> seconds = write_raw(*best);
    if (!seconds.ok()) return seconds.status();
    raw.push_back(*seconds);
    const double begun = NowSeconds();
    const Result<CheckpointRecord> record = SaveOne(setup, i, data);
    ours.push_back(NowSeconds() - begun);
    if (!record.ok()) return record.status();
    Remove(setup, record->directory);
  }
  setup.report["save_s"] = Median(ours) + setup.report["stall_s"].get<double>();
  setup.report["write_ratio"] = Median(raw) / Median(ours);
  Say(fmt::format("write    {:.2f} GB/s, {:.2f} of the best raw writer ({:.2f} GB/s with {})",
                  GigabytesPerSecond(data.size(), Median(ours)), Median(raw) / Median(ours),
                  GigabytesPerSecond(data.size(), Median(raw)), best->ToString()));
  return {};
}

Status MeasureRead(Setup& setup) {
  AlignedBuffer data;
  MUSTER_RETURN_IF_ERROR(GatherShard(setup.live, PlanOf(setup.tensors, 1, 0, 1), &data));
  const Result<CheckpointRecord> record = SaveOne(setup, 1, data);
  if (!record.ok()) return record.status();
  const std::string path =
      JoinPath(JoinPath(setup.directory, record->directory), record->files[0].name);
  // The raw reader takes the same file, whole pages of it.
  const auto whole = static_cast<std::size_t>(data.size() / checkpoint::kDirectAlignment *
                                              checkpoint::kDirectAlignment);
  const auto read_raw = [&](const RawSetting& setting) -> Result<double> {
    if (Status status = DropFromCache(path); !status.ok()) return status;
    return RawRead(path, data.span().first(whole), setting);
  };
  const Result<RawSetting> best = BestSetting(read_raw);
  if (!best.ok()) return best.status();
  AlignedBuffer targets;
  const auto wanted = WantedBy(setup.tensors, 0, 1, &targets);
  if (!wanted.ok()) return wanted.status();
  checkpoint::ReadOptions options;
  options.pool = &setup.pool;
  std::vector<double> ours;
  std::vector<double> raw;
  for (int i = 0; i < setup.repeats; ++i) {
    const Result<double> seconds = read_raw(*best);
    if (!seconds.ok()) return seconds.status();
    raw.push_back(*seconds);
    MUSTER_RETURN_IF_ERROR(DropFromCache(path));
    const double begun = NowSeconds();
    const auto loaded = LoadBoxes(setup.fs, setup.directory, *record, *wanted, options);
    ours.push_back(NowSeconds() - begun);
    if (!loaded.ok()) return loaded.status();
  }
  if (!std::ranges::equal(targets.span(), setup.live.all())) {
    return DataLoss("what was loaded is not what was saved");
  }
  Remove(setup, record->directory);
  setup.report["load_s"] = Median(ours);
  setup.report["read_ratio"] = Median(raw) / Median(ours);
  Say(fmt::format("read     {:.2f} GB/s, {:.2f} of the best raw reader ({:.2f} GB/s with {})",
                  GigabytesPerSecond(data.size(), Median(ours)), Median(raw) / Median(ours),
                  GigabytesPerSecond(data.size(), Median(raw)), best->ToString()));
  return {};
}

Status MeasureReshard(Setup& setup) {
  std::int64_t step = 0;
  for (const auto& [from, to] : {std::pair(4, 3), std::pair(8, 5), std::pair(3, 7)}) {
    ++step;
    AlignedBuffer buffer;
    std::vector<FileRecord> files;
    for (std::int32_t rank = 0; rank < from; ++rank) {
      const checkpoint::ShardPlan plan = PlanOf(setup.tensors, step, rank, from);
      MUSTER_RETURN_IF_ERROR(GatherShard(setup.live, plan, &buffer));
      auto file = checkpoint::WriteShard(setup.fs, setup.directory, plan, buffer, setup.pool);
      if (!file.ok()) return file.status();
      files.push_back(*std::move(file));
    }
    const CheckpointRecord record = RecordOf(setup.tensors, step, std::move(files));
    checkpoint::ReadOptions options;
    options.pool = &setup.pool;
    std::int64_t read = 0;
    std::int64_t needed = 0;
    for (std::int32_t rank = 0; rank < to; ++rank) {
      const auto wanted = WantedBy(setup.tensors, rank, to, &buffer);
      if (!wanted.ok()) return wanted.status();
      const auto loaded = LoadBoxes(setup.fs, setup.directory, record, *wanted, options);
      if (!loaded.ok()) return loaded.status();
      read += loaded->bytes_read;
      needed += buffer.size();
    }
    Remove(setup, record.directory);
    const double ratio = static_cast<double>(read) / static_cast<double>(needed);
    setup.report["reshard_read_ratio"][fmt::format("{}to{}", from, to)] = ratio;
    Say(fmt::format("reshard  {} to {} ranks reads {:.3f} of the bytes needed", from, to, ratio));
  }
  return {};
}

Status MeasureMemory(Setup& setup) {
  AlignedBuffer data;
  MUSTER_RETURN_IF_ERROR(GatherShard(setup.live, PlanOf(setup.tensors, 1, 0, 1), &data));
  Result<CheckpointRecord> record = CheckpointRecord();
  const std::int64_t save = PeakBeyond([&] { record = SaveOne(setup, 1, data); });
  if (!record.ok()) return record.status();
  AlignedBuffer targets;
  const auto wanted = WantedBy(setup.tensors, 0, 1, &targets);
  if (!wanted.ok()) return wanted.status();
  checkpoint::ReadOptions options;
  options.pool = &setup.pool;
  Status status;
  const std::int64_t load = PeakBeyond(
      [&] { status = LoadBoxes(setup.fs, setup.directory, *record, *wanted, options).status(); });
  MUSTER_RETURN_IF_ERROR(status);
  Remove(setup, record->directory);
  setup.report["extra_memory_bytes"] = {
      {"snapshot", data.capacity()}, {"save", save}, {"load", load}};
  Say(fmt::format("memory   {} bytes of snapshot, {} more to save, {} more to load",
                  data.capacity(), save, load));
  return {};
}

Status MeasureTorch(Setup& setup) {
  setup.report["torch_save_ratio"] = nullptr;
  setup.report["torch_load_ratio"] = nullptr;
  if (std::system("/usr/bin/python3 -c 'import torch' 2>/dev/null") != 0) {
    Say("torch    is not installed (Debian's python3-torch): nothing to compare with");
    return {};
  }
  const std::string spec_path = JoinPath(setup.directory, "torch.json");
  auto spec = nlohmann::json::array();
  for (const TensorSpec& tensor : setup.tensors) {
    spec.push_back({tensor.name, DTypeName(tensor.dtype), tensor.shape});
  }
  std::ofstream(spec_path) << spec;
  const std::string command =
      fmt::format("/usr/bin/python3 '{}/tests/bench/torch_checkpoint_peer.py' '{}' '{}'",
                  MUSTER_SOURCE_DIR, spec_path, JoinPath(setup.directory, "torch.pt"));
  std::vector<double> saves;
  std::vector<double> loads;
  for (int i = 0; i < setup.repeats; ++i) {
    const std::unique_ptr<FILE, int (*)(FILE*)> output(popen(command.c_str(), "r"), &pclose);
    char line[200] = "";
    const bool got = output != nullptr && fgets(line, sizeof(line), output.get()) != nullptr;
    const auto times = nlohmann::json::parse(line, nullptr, false);
    if (!got || !times.is_object()) return Unavailable("PyTorch's part failed: " + command);
    saves.push_back(times.at("save_s").get<double>());
    loads.push_back(times.at("load_s").get<double>());
  }
  const double save_ratio = Median(saves) / setup.report["save_s"].get<double>();
  const double load_ratio = Median(loads) / setup.report["load_s"].get<double>();
  setup.report["torch_save_ratio"] = save_ratio;
  setup.report["torch_load_ratio"] = load_ratio;
  Say(fmt::format("torch    saves in {:.2f} s, {:.1f} times ours; loads in {:.2f} s, {:.1f} times",
                  Median(saves), save_ratio, Median(loads), load_ratio));
  return {};
}

Status MeasurePlan(Setup& setup) {
  std::vector<TensorSpec> tensors;
  for (std::int32_t i = 0; i < kTensors; ++i) {
    tensors.push_back({fmt::format("layers.{}.weight", i), DType::kFloat32, {2 * kRanks, 64}, 0});
  }
  std::vector<FileRecord> files;
  for (std::int32_t rank = 0; rank < kRanks; ++rank) {
    files.push_back({checkpoint::ShardFileName(Rank(rank), 0), 1 << 20, 0, Rank(rank)});
  }
  const CheckpointRecord record = RecordOf(tensors, 1, std::move(files));
  AlignedBuffer targets;
  const auto wanted = WantedBy(tensors, kRanks / 2, kRanks - 1, &targets);
  if (!wanted.ok()) return wanted.status();
  std::vector<double> plans;
  std::vector<double> checks;
  for (int i = 0; i < setup.repeats; ++i) {
    const double begun = NowSeconds();
    MUSTER_RETURN_IF_ERROR(checkpoint::CheckRecord(record));
    const double checked = NowSeconds();
    const checkpoint::StoredLayout layout(record);
    const auto plan = checkpoint::PlanLoad(layout, record, *wanted, {});
    if (!plan.ok()) return plan.status();
    plans.push_back(NowSeconds() - checked);
    checks.push_back(checked - begun);
  }
  setup.report["plan_ms"] = Median(plans) * 1e3;
  setup.report["check_record_ms"] = Median(checks) * 1e3;
  Say(fmt::format(
      "plan     {:.1f} ms for one rank, after {:.1f} ms to check the record of {} ranks "
      "and {} tensors",
      Median(plans) * 1e3, Median(checks) * 1e3, kRanks, kTensors));
  return {};
}

Status MeasureCommits(Setup& setup) {
  std::vector<double> commits;
  for (int i = 0; i < setup.repeats; ++i) {
    const Result<CommitCost> cost =
        MeasureCommit(JoinPath(setup.directory, "index"), kRanks, kTensors);
    Remove(setup, "index");
    if (!cost.ok()) return cost.status();
    commits.push_back(cost->commit_ms);
  }
  setup.report["commit_ms"] = Median(commits);
  Say(fmt::format("commit   {:.1f} ms", Median(commits)));
  return {};
}

}  // namespace muster::bench
