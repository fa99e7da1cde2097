#include "checkpoint/root_claim.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "checkpoint/digest.h"
#include "checkpoint/file_system.h"
#include "protocol/codec_json.h"

namespace muster::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxOwnerBytes = 4096;
constexpr std::size_t kMaxDepth = 4;

class PosixOwnerFile : public OwnerFile {
 public:
  PosixOwnerFile(int descriptor, std::string path) : fd_(descriptor), path_(std::move(path)) {}
  ~PosixOwnerFile() override { ::close(fd_); }
  PosixOwnerFile(const PosixOwnerFile&) = delete;
  PosixOwnerFile& operator=(const PosixOwnerFile&) = delete;

  Status Lock(Hold hold) override {
    struct flock lock {};
    lock.l_type = static_cast<short>(hold == Hold::kNone     ? F_UNLCK
                                     : hold == Hold::kShared ? F_RDLCK
                                                             : F_WRLCK);
    lock.l_whence = SEEK_SET;
    if (::fcntl(fd_, F_OFD_SETLK, &lock) == 0) return {};
    if (errno == EAGAIN || errno == EACCES) return Unavailable("it is locked");
    return {Code::kUnimplemented, FromErrno(errno, "cannot lock " + path_).message()};
  }

  Result<std::string> Read() override {
    std::array<char, kMaxOwnerBytes> bytes{};
    std::size_t got = 0;
    while (got < bytes.size()) {
      const ssize_t more =
          ::pread(fd_, bytes.data() + got, bytes.size() - got, static_cast<off_t>(got));
      if (more < 0 && errno == EINTR) continue;
      if (more < 0) return Failed("read");
      if (more == 0) break;
      got += static_cast<std::size_t>(more);
    }
    return std::string(bytes.data(), got);
  }

  Status Replace(std::string_view text) override {
    std::size_t done = 0;
    while (done < text.size()) {
      const ssize_t more =
          ::pwrite(fd_, text.data() + done, text.size() - done, static_cast<off_t>(done));
      if (more < 0 && errno == EINTR) continue;
      if (more < 0) return Failed("write");
      done += static_cast<std::size_t>(more);
    }
    if (::ftruncate(fd_, static_cast<off_t>(text.size())) != 0) return Failed("cut");
    return ::fsync(fd_) == 0 ? Status() : Failed("sync");
  }

  [[nodiscard]] int descriptor() const override { return fd_; }

 private:
  [[nodiscard]] Status Failed(const char* action) const {
    // Not kUnavailable, whatever errno is: that is for locks.
    return Internal(FromErrno(errno, fmt::format("cannot {} {}", action, path_)).message());
  }
  const int fd_;
  const std::string path_;
};

}  // namespace

bool RootOwner::Has(Lineage lineage) const {
  return std::ranges::find(lineages, lineage) != lineages.end();
}

std::string EncodeOwner(const RootOwner& owner) {
  Json lineages = Json::array();
  for (const Lineage lineage : owner.lineages) lineages.push_back(ToHex(lineage.value()));
  const Json inner = {{"job", owner.job},
                      {"lineages", std::move(lineages)},
                      {"host", owner.host},
                      {"pid", owner.pid},
                      {"since_unix_ms", owner.since_unix_ms}};
  const std::string digest = ToHex(DigestOf(codec::Dump(inner)));
  return codec::Dump({{"muster_owner", 1}, {"owner", inner}, {"digest", digest}}) + "\n";
}

std::optional<RootOwner> DecodeOwner(std::string_view text) {
  const Result<Json> json = codec::ParseJson(text, kMaxDepth);
  if (!json.ok() || !json->is_object() || !json->contains("owner")) return std::nullopt;
  const Json& inner = json->at("owner");
  if (json->value("digest", Json()) != ToHex(DigestOf(codec::Dump(inner)))) return std::nullopt;
  try {
    RootOwner owner;
    inner.at("job").get_to(owner.job);
    inner.at("host").get_to(owner.host);
    inner.at("pid").get_to(owner.pid);
    inner.at("since_unix_ms").get_to(owner.since_unix_ms);
    for (const Json& lineage : inner.at("lineages")) {
      owner.lineages.emplace_back(std::stoull(lineage.get<std::string>(), nullptr, 16));
    }
    return owner;
  } catch (const std::exception&) {  // of a version that writes something else
    return std::nullopt;
  }
}

Result<std::unique_ptr<OwnerFile>> OpenOwnerFile(const std::string& root) {
  const std::string path = JoinPath(root, std::string(kOwnerFileName));
  int fd = -1;
  do {
    // Others of the job, and other jobs, may belong to other users of one group.
    fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return FromErrno(errno, "cannot open " + path);
  return std::unique_ptr<OwnerFile>(std::make_unique<PosixOwnerFile>(fd, path));
}

RootClaim::RootClaim(std::string root, RootOwner self, Open open)
    : root_(std::move(root)), self_(std::move(self)), open_(std::move(open)) {}

RootClaim::Answer RootClaim::Claim(Lineage lineage, Instant now) {
  if (std::ranges::find(held_, lineage) != held_.end()) return Answer::kHeld;
  const Status tried = Try(lineage);
  if (tried.ok()) {
    held_.push_back(lineage);
    waiting_since_.reset();
    return Answer::kHeld;
  }
  if (tried.code() != Code::kUnavailable) {
    // Held half-way it would only keep those out who could do better.
    if (held_.empty()) file_.reset();
    reason_ = {tried.code(), fmt::format("checkpoint directory {}: nothing keeps another job from "
                                         "writing there too: {}",
                                         root_, tried.message())};
    return Answer::kUnprotected;
  }
  if (!waiting_since_) waiting_since_ = now;
  if (now - *waiting_since_ < kPatience) return Answer::kLater;
  reason_ = HeldByAnother();
  return Answer::kRefused;
}

Status RootClaim::Try(Lineage lineage) {
  if (file_ == nullptr) {
    Result<std::unique_ptr<OwnerFile>> file = open_();
    if (!file.ok()) return Internal(file.status().message());
    file_ = std::move(file).value();
  }
  MUSTER_RETURN_IF_ERROR(Read());
  if (!held_.empty()) return Append(lineage);
  // Nobody waits with a lock in hand, so of many that find no owner one gets the exclusive lock.
  return owner_ && owner_->Has(lineage) ? Share(lineage) : Take(lineage);
}

Status RootClaim::Read() {
  const Result<std::string> text = file_->Read();
  if (!text.ok()) return text.status();
  owner_ = DecodeOwner(*text);
  return {};
}

// The file named this lineage a moment ago.
Status RootClaim::Share(Lineage lineage) {
  MUSTER_RETURN_IF_ERROR(file_->Lock(OwnerFile::Hold::kShared));
  MUSTER_RETURN_IF_ERROR(Read());
  if (owner_ && owner_->Has(lineage)) return {};
  MUSTER_RETURN_IF_ERROR(file_->Lock(OwnerFile::Hold::kNone));
  return Unavailable("it was taken just now");
}

// The exclusive lock proves that no process of another lineage lives.
Status RootClaim::Take(Lineage lineage) {
  MUSTER_RETURN_IF_ERROR(file_->Lock(OwnerFile::Hold::kExclusive));
  MUSTER_RETURN_IF_ERROR(Read());
  if (!owner_ || !owner_->Has(lineage)) {
    RootOwner owner = self_;
    owner.lineages = {lineage};
    MUSTER_RETURN_IF_ERROR(file_->Replace(EncodeOwner(owner)));
    owner_ = std::move(owner);
  }
  return file_->Lock(OwnerFile::Hold::kShared);
}

// This process and others share the root under an earlier lineage. They all write the same, so it
// does no harm when several do at once.
Status RootClaim::Append(Lineage lineage) {
  if (owner_ && owner_->Has(lineage)) return {};
  const bool ours =
      !owner_ || std::ranges::any_of(held_, [&](Lineage old) { return owner_->Has(old); });
  if (!ours) return Unavailable("it belongs to another job now");
  RootOwner owner = owner_.value_or(self_);
  if (!owner_) owner.lineages = held_;
  owner.lineages.push_back(lineage);
  if (owner.lineages.size() > kMaxOwnerLineages) owner.lineages.erase(owner.lineages.begin());
  MUSTER_RETURN_IF_ERROR(file_->Replace(EncodeOwner(owner)));
  owner_ = std::move(owner);
  return {};
}

Status RootClaim::HeldByAnother() const {
  const std::string holder =
      owner_ ? fmt::format("job {} (lineage {}, claimed by process {} on host {})", owner_->job,
                           ToHex(owner_->lineages.empty() ? 0 : owner_->lineages.back().value()),
                           owner_->pid, owner_->host)
             : "a job that did not say its name";
  return FailedPrecondition(
      fmt::format("checkpoint directory {} is in use by {}, whose workers are alive or stopped: "
                  "choose another checkpoint directory, or end that job",
                  root_, holder));
}

}  // namespace muster::checkpoint
