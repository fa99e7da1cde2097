// One job at a time writes below a checkpoint root. Every worker process holds a shared lock on the
// file `<root>/.muster-owner`, which names the lineages whose steps the root holds; a job of
// another lineage gets in only once no such process lives, be it running or stopped.
//
// The locks are those of open file descriptions (fcntl F_OFD_SETLK): they end with the process,
// however it ends, and work between machines where the file system has locks. Where it has none,
// or the file cannot be written, the claim is unprotected: training matters more.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/ids.h"
#include "protocol/status.h"
#include "protocol/time.h"

namespace muster::checkpoint {

inline constexpr std::string_view kOwnerFileName = ".muster-owner";
// A job whose coordinator lost its memory goes on under a new lineage; older ones are forgotten.
inline constexpr std::size_t kMaxOwnerLineages = 16;

// What the file says: one line of JSON with a digest of its own.
struct RootOwner {
  std::string job;
  std::vector<Lineage> lineages;  // the newest last
  std::string host;               // of the process that wrote it, as are the next two
  std::int64_t pid = 0;
  std::int64_t since_unix_ms = 0;
  [[nodiscard]] bool Has(Lineage lineage) const;
  friend bool operator==(const RootOwner&, const RootOwner&) = default;
};
[[nodiscard]] std::string EncodeOwner(const RootOwner& owner);
// Nothing for a text that is empty, torn or damaged: then nobody owns the root.
[[nodiscard]] std::optional<RootOwner> DecodeOwner(std::string_view text);

// The file, open. The lock is this object's own, whatever else the process has open, and ends with
// it. Not thread-safe. No call waits for a lock.
class OwnerFile {
 public:
  virtual ~OwnerFile() = default;
  enum class Hold { kNone, kShared, kExclusive };
  // Changes the hold to `hold`, or leaves it as it is: kUnavailable when somebody else's stands
  // against it, another code when there are no locks here.
  virtual Status Lock(Hold hold) = 0;
  [[nodiscard]] virtual Result<std::string> Read() = 0;
  // Writes the text in place, since the lock is the inode's, and syncs it. Readers without a lock
  // may see a part of it.
  virtual Status Replace(std::string_view text) = 0;
  // For those who have to close it in a child of theirs; -1 when there is none.
  [[nodiscard]] virtual int descriptor() const = 0;
};

// Creates the file when it is missing. Blocks for a few system calls.
[[nodiscard]] Result<std::unique_ptr<OwnerFile>> OpenOwnerFile(const std::string& root);

// A process's claim on one root. Not thread-safe. Calls block for a few system calls at most.
class RootClaim {
 public:
  using Open = std::function<Result<std::unique_ptr<OwnerFile>>()>;

  // How long one that cannot have the root tries: workers that go on under a new lineage may be
  // about to say so.
  static constexpr Duration kPatience = Duration::Seconds(5);

  enum class Answer {
    kHeld,         // by this process, under this lineage too
    kUnprotected,  // not claimed, and nothing can be done about it; reason() says why
    kLater,        // not yet: ask again in a moment
    kRefused,      // reason() says by whom, and the remedy
  };

  // `self` without lineages: what is written when this process takes the root. `root` is for texts.
  RootClaim(std::string root, RootOwner self, Open open);

  // Takes the root for `lineage`, or goes on with it when an earlier lineage of this process has
  // it. Once held it stays so. `now` goes by one clock for all calls.
  [[nodiscard]] Answer Claim(Lineage lineage, Instant now);

  [[nodiscard]] const Status& reason() const { return reason_; }
  // As OwnerFile::descriptor(), -1 before the first call of Claim.
  [[nodiscard]] int descriptor() const { return file_ == nullptr ? -1 : file_->descriptor(); }

 private:
  // kUnavailable: somebody stands against it. Any other error: it cannot be claimed at all.
  [[nodiscard]] Status Try(Lineage lineage);
  [[nodiscard]] Status Share(Lineage lineage);
  [[nodiscard]] Status Take(Lineage lineage);
  [[nodiscard]] Status Append(Lineage lineage);
  [[nodiscard]] Status Read();
  [[nodiscard]] Status HeldByAnother() const;

  const std::string root_;
  const RootOwner self_;
  const Open open_;
  std::unique_ptr<OwnerFile> file_;
  std::optional<RootOwner> owner_;  // as last read
  std::vector<Lineage> held_;       // by this process; not empty: it has the shared lock
  std::optional<Instant> waiting_since_;
  Status reason_;
};

}  // namespace muster::checkpoint
