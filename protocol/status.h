// Errors as values. A Status says what happened, to which thing, and what to do about it; a Result
// is a value or such a Status. Nothing in Muster throws across a public interface.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/check.h"

namespace muster {

enum class Code {
  kOk,
  kInvalidArgument,     // the caller's input is wrong; trying again does not help
  kFailedPrecondition,  // right input at the wrong moment: the message says what has to come first
  kNotFound,
  kAlreadyExists,
  kUnavailable,  // cannot be reached now; trying again may help
  kDeadlineExceeded,
  kInterrupted,        // the generation ended under this call; the step comes again
  kFenced,             // this incarnation was declared dead and may change nothing any more
  kDataLoss,           // stored or received bytes are not the ones that were written
  kResourceExhausted,  // disk full, bound reached
  kPermissionDenied,
  kUnimplemented,
  kInternal,  // the operating system or a library failed in a way not foreseen
};

// "kDataLoss" -> "data_loss": for logs, JSON and tests.
[[nodiscard]] std::string_view CodeName(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] bool ok() const { return code_ == Code::kOk; }
  [[nodiscard]] Code code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  // "data_loss: shard r00001.safetensors: block 3 …", or "ok".
  [[nodiscard]] std::string ToString() const;

  friend bool operator==(const Status&, const Status&) = default;

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

[[nodiscard]] Status InvalidArgument(std::string message);
[[nodiscard]] Status FailedPrecondition(std::string message);
[[nodiscard]] Status NotFound(std::string message);
[[nodiscard]] Status AlreadyExists(std::string message);
[[nodiscard]] Status Unavailable(std::string message);
[[nodiscard]] Status DeadlineExceeded(std::string message);
[[nodiscard]] Status Interrupted(std::string message);
[[nodiscard]] Status Fenced(std::string message);
[[nodiscard]] Status DataLoss(std::string message);
[[nodiscard]] Status ResourceExhausted(std::string message);
[[nodiscard]] Status PermissionDenied(std::string message);
[[nodiscard]] Status Unimplemented(std::string message);
[[nodiscard]] Status Internal(std::string message);

// The Status for `errno`: the fitting code (ENOSPC and EDQUOT are kResourceExhausted, ENOENT is
// kNotFound, EACCES, EPERM and EROFS are kPermissionDenied, …) and "what: strerror".
[[nodiscard]] Status FromErrno(int error_number, std::string_view what);

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  // REQUIRES: !status.ok()
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    MUSTER_CHECK(!status_.ok(), "a Result without a value needs an error");
  }

  [[nodiscard]] bool ok() const { return value_.has_value(); }
  [[nodiscard]] const Status& status() const { return status_; }
  // REQUIRES: ok()
  [[nodiscard]] T& value() & { return Checked(); }
  [[nodiscard]] const T& value() const& {
    MUSTER_CHECK(ok(), status_.message());
    return *value_;
  }
  [[nodiscard]] T value() && { return std::move(Checked()); }
  T& operator*() { return Checked(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &Checked(); }
  const T* operator->() const { return &value(); }

 private:
  T& Checked() {
    MUSTER_CHECK(ok(), status_.message());
    return *value_;
  }
  Status status_;
  std::optional<T> value_;
};

// Leaves the calling function with the error, if it is one.
#define MUSTER_RETURN_IF_ERROR(expression)                                    \
  do {                                                                        \
    if (::muster::Status muster_status_ = (expression); !muster_status_.ok()) \
      return muster_status_;                                                  \
  } while (false)

}  // namespace muster
