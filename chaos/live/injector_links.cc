// Faults of links, disks and stored bytes.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "chaos/live/injector.h"
#include "protocol/prng.h"

namespace muster::chaos {
namespace {

Direction DirectionNamed(const std::string& name) {
  if (name == "out") return Direction::kOut;
  return name == "in" ? Direction::kIn : Direction::kBoth;
}

// Takes what is left of a file system with one file. Errors but the expected one are returned.
Status FillUp(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return FromErrno(errno, path);
  // In ever smaller pieces, so that nothing at all is left.
  off_t at = 0;
  int error = 0;
  for (off_t piece = 1 << 20; piece >= 512 && (error == 0 || error == ENOSPC); piece /= 2) {
    while ((error = posix_fallocate(file, at, piece)) == 0) at += piece;
  }
  close(file);
  return error == ENOSPC ? Status() : FromErrno(error, path);
}

std::vector<std::string> FilesIn(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") files.push_back(entry->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Status FlipBit(const std::string& path, off_t at, unsigned bit) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return FromErrno(errno, path);
  unsigned char byte = 0;
  bool ok = pread(file, &byte, 1, at) == 1;
  byte = static_cast<unsigned char>(byte ^ (1U << bit));
  ok = ok && pwrite(file, &byte, 1, at) == 1;
  const int error = errno;
  close(file);
  return ok ? Status() : FromErrno(error, path);
}

}  // namespace

Status Injector::OnLinks(Injection* injection) {
  const PlannedFault& planned = injection->planned;
  if (network_ == nullptr) return FailedPrecondition("the run has no network of its own");
  int connections = 0;
  for (const std::string& node : planned.nodes) {
    for (const std::string& peer : planned.peers) {
      if (planned.kind == FaultKind::kReset) {
        const Result<int> broken = network_->Reset(node, peer);
        if (!broken.ok()) return broken.status();
        connections += *broken;
      } else {
        MUSTER_RETURN_IF_ERROR(network_->Cut(node, peer, DirectionNamed(planned.direction)));
      }
    }
    MUSTER_RETURN_IF_ERROR(OnLink(*injection, node, true));
  }
  injection->what = std::string(DescriptionOf(planned.kind)) +
                    fmt::format(": node {}", fmt::join(planned.nodes, ", "));
  if (!planned.peers.empty()) {
    injection->what += fmt::format(" from {}", fmt::join(planned.peers, ", "));
  }
  if (planned.kind == FaultKind::kReset) {
    injection->what += fmt::format(" ({} connections)", connections);
  }
  return {};
}

// What concerns all that a node sends and is sent.
Status Injector::OnLink(const Injection& injection, const std::string& node, bool begin) {
  const std::int64_t amount = begin ? injection.planned.amount : 0;
  switch (injection.planned.kind) {
    case FaultKind::kLinkDown: return network_->SetLink(node, !begin);
    case FaultKind::kSlow: return network_->LimitRate(node, amount);
    case FaultKind::kLossy: return network_->Lose(node, amount);
    case FaultKind::kDelay: return network_->Delay(node, Duration::Millis(amount));
    default: return {};
  }
}

Status Injector::HealLinks(const Injection& injection) {
  for (const std::string& node : injection.planned.nodes) {
    for (const std::string& peer : injection.planned.peers) {
      MUSTER_RETURN_IF_ERROR(network_->Heal(node, peer));
    }
    MUSTER_RETURN_IF_ERROR(OnLink(injection, node, false));
  }
  return {};
}

Status Injector::Fill(Injection* injection) {
  const bool index = injection->planned.kind == FaultKind::kFillIndexDisk;
  const std::string filler = fmt::format("{}/{}/filler-{}", lab_.directory(),
                                         index ? "data" : "checkpoints", injection->planned.number);
  fillers_[injection->planned.number].push_back(filler);
  MUSTER_RETURN_IF_ERROR(FillUp(filler));
  injection->what =
      fmt::format("the disk of the {} is full", index ? "coordinator's store" : "checkpoints");
  return {};
}

// Only where another checkpoint is left that counts: one is all that is promised.
Status Injector::Damage(Injection* injection) {
  const PlannedFault& planned = injection->planned;
  view_.Refresh(Duration::Seconds(1));
  const std::optional<JobStatus> job = view_.Latest();
  if (!job || job->checkpoint_root.empty()) {
    return FailedPrecondition("the job saves no checkpoints");
  }
  std::vector<std::string> sound;
  for (const CheckpointStatus& checkpoint : job->checkpoints) {
    const std::string directory = job->checkpoint_root + "/" + checkpoint.directory;
    const bool hurt = std::any_of(damaged_.begin(), damaged_.end(), [&](const std::string& file) {
      return file.starts_with(directory + "/");
    });
    if (checkpoint.state == "announced" && !hurt) sound.push_back(directory);
  }
  if (sound.size() < 2) {
    return FailedPrecondition(
        fmt::format("{} undamaged checkpoints count; one has to be left", sound.size()));
  }
  const std::vector<std::string> files = FilesIn(sound.front());
  if (files.empty()) return NotFound(fmt::format("{} holds no files", sound.front()));
  Prng dice(planned.dice);
  const std::string& path = files[dice.Below(files.size())];
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size == 0) return NotFound(fmt::format("{} is gone or empty", path));
  const auto at = static_cast<off_t>(dice.Below(size));
  damaged_.push_back(path);
  if (planned.kind == FaultKind::kTruncate) {
    if (truncate(path.c_str(), at) != 0) return FromErrno(errno, path);
    injection->what = fmt::format("{} cut to {} of {} bytes", path, at, size);
    return {};
  }
  const auto bit = static_cast<unsigned>(dice.Below(8));
  MUSTER_RETURN_IF_ERROR(FlipBit(path, at, bit));
  injection->what = fmt::format("bit {} of byte {} of {} flipped", bit, at, path);
  return {};
}

}  // namespace muster::chaos
