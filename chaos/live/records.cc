#include "chaos/live/records.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace muster::chaos {
namespace {

using Json = nlohmann::json;

template <class T>
void GetIfThere(const Json& json, const char* key, T* value) {
  if (const auto found = json.find(key); found != json.end() && !found->is_null()) {
    found->get_to(*value);
  }
}

StepRecord FromJson(const Json& json) {
  StepRecord record;
  GetIfThere(json, "final", &record.final);
  record.t_ns = json.at("t_ns").get<std::int64_t>();
  record.pid = json.at("pid").get<std::int64_t>();
  record.worker = json.at("worker").get<std::string>();
  record.incarnation = json.at("incarnation").get<std::string>();
  record.step = json.at("step").get<std::int64_t>();
  GetIfThere(json, "digest", &record.digest);
  if (record.final) return record;
  record.generation = json.at("generation").get<std::int64_t>();
  record.rank = json.at("rank").get<std::int64_t>();
  record.world_size = json.at("world_size").get<std::int64_t>();
  record.epoch = json.at("epoch").get<std::int64_t>();
  for (const Json& range : json.at("samples")) {
    record.samples.push_back({range.at(0).get<std::int64_t>(), range.at(1).get<std::int64_t>()});
  }
  record.outcome = json.at("outcome").get<std::string>();
  GetIfThere(json, "loss", &record.loss);
  return record;
}

Result<std::vector<std::string>> RecordFiles(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator file(directory, error), end; !error && file != end;
       file.increment(error)) {
    names.push_back(file->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return Internal(fmt::format("record directory {}: {}", directory, error.message()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

Result<StepRecord> ParseRecord(std::string_view line) {
  try {
    StepRecord record = FromJson(Json::parse(line));
    if (record.final) return record;
    if (record.generation < 1 || record.step < 1 || record.rank < 0 ||
        record.rank >= record.world_size) {
      return DataLoss(fmt::format("record with impossible numbers: {}", line));
    }
    return record;
  } catch (const std::exception& error) {
    return DataLoss(fmt::format("not a step record ({}): {}", error.what(), line));
  }
}

RecordFollower::RecordFollower(std::string directory)
    : directory_(std::move(directory)), watch_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
  if (watch_ >= 0) inotify_add_watch(watch_, directory_.c_str(), IN_CREATE | IN_MODIFY);
}

RecordFollower::~RecordFollower() {
  if (watch_ >= 0) close(watch_);
}

void RecordFollower::AwaitChange(Duration limit) {
  pollfd waiting{.fd = watch_, .events = POLLIN, .revents = 0};
  if (poll(&waiting, 1, static_cast<int>(limit.millis())) <= 0) return;
  alignas(inotify_event) std::array<char, 4096> events;
  while (read(watch_, events.data(), events.size()) > 0) {
  }
}

Result<std::vector<StepRecord>> RecordFollower::Poll() {
  const Result<std::vector<std::string>> names = RecordFiles(directory_);
  if (!names.ok()) return names.status();
  const std::size_t before = all_.size();
  for (const std::string& name : *names) {
    std::uint64_t& offset = offsets_[name];
    const std::string path = directory_ + "/" + name;
    std::error_code error;
    const std::uint64_t size = std::filesystem::file_size(path, error);
    if (error || size <= offset) continue;
    std::ifstream file(path, std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    std::string line;
    // getline sets eof when the text ended without a newline: not a whole record yet.
    while (std::getline(file, line) && !file.eof()) {
      offset += line.size() + 1;
      Result<StepRecord> record = ParseRecord(line);
      if (!record.ok()) return DataLoss(fmt::format("{}: {}", path, record.status().message()));
      if (!record->final) last_step_ = std::max(last_step_, record->step);
      all_.push_back(std::move(record).value());
    }
  }
  return std::vector<StepRecord>(all_.begin() + static_cast<std::ptrdiff_t>(before), all_.end());
}

Result<std::vector<StepRecord>> ReadRecords(const std::string& directory) {
  RecordFollower follower(directory);
  return follower.Poll();
}

}  // namespace muster::chaos
