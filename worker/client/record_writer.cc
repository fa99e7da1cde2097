#include "worker/client/record_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>

#include "protocol/transport/steady_clock.h"

namespace muster::worker {

namespace {

// A worker's name as JSON text.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

// A name of a file for any name of a worker.
std::string FileName(const std::string& worker) {
  std::string name = worker;
  for (char& c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_';
    if (!plain) c = '_';
  }
  return fmt::format("{}-{}.jsonl", name, ::getpid());
}

const char* NameOf(Outcome outcome) {
  switch (outcome) {
    case Outcome::kNone: return "none";
    case Outcome::kApply: return "apply";
    case Outcome::kSkip: return "skip";
    case Outcome::kVoid: return "void";
  }
  return "";
}

}  // namespace

Status RecordWriter::Open(const std::string& directory, const WorkerId& worker) {
  if (directory.empty()) return {};
  path_ = directory + "/" + FileName(worker.value());
  const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) {
    const Status status = FromErrno(errno, "cannot write records to " + path_);
    return {status.code(), status.message() + "; MUSTER_RECORD_DIR must be a writable directory"};
  }
  file_ = UniqueFd(fd);
  return {};
}

std::string RecordWriter::Head(const StepEntry& entry) {
  return fmt::format(
      R"({{"t_ns":{},"pid":{},"worker":{},"incarnation":"{}","generation":{},"step":{},"rank":{},)"
      R"("world_size":{})",
      static_cast<std::int64_t>(UnixMillisNow() * 1e6), ::getpid(),
      Quoted(entry.member.worker.value()), ToHex(entry.member.incarnation.value()),
      entry.generation.value(), entry.step.value(), entry.rank.value(), entry.world_size);
}

Status RecordWriter::Write(const StepEntry& entry) {
  if (!active()) return {};
  std::string samples;
  for (const Range& range : entry.samples) {
    samples += fmt::format("{}[{},{}]", samples.empty() ? "" : ",", range.lo, range.hi);
  }
  const std::string loss = std::isfinite(entry.loss) ? fmt::format("{:.17g}", entry.loss) : "null";
  return Append(
      Head(entry) +
      fmt::format(R"(,"epoch":{},"samples":[{}],"outcome":"{}","loss":{},"digest":"{}"}})",
                  entry.epoch, samples, NameOf(entry.outcome), loss, ToHex(entry.digest)) +
      "\n");
}

Status RecordWriter::WriteFinal(const StepEntry& entry) {
  if (!active()) return {};
  return Append(Head(entry) + fmt::format(R"(,"final":true,"digest":"{}"}})", ToHex(entry.digest)) +
                "\n");
}

Status RecordWriter::Append(const std::string& line) {
  ssize_t written = 0;
  do {
    written = ::write(file_.get(), line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) return {};
  if (written < 0) return FromErrno(errno, "cannot append to " + path_);
  return ResourceExhausted("cannot append to " + path_ + ": the line was cut short");
}

}  // namespace muster::worker
