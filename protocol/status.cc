#include "protocol/status.h"

#include <cerrno>
#include <system_error>

namespace muster {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kInvalidArgument: return "invalid_argument";
    case Code::kFailedPrecondition: return "failed_precondition";
    case Code::kNotFound: return "not_found";
    case Code::kAlreadyExists: return "already_exists";
    case Code::kUnavailable: return "unavailable";
    case Code::kDeadlineExceeded: return "deadline_exceeded";
    case Code::kInterrupted: return "interrupted";
    case Code::kFenced: return "fenced";
    case Code::kDataLoss: return "data_loss";
    case Code::kResourceExhausted: return "resource_exhausted";
    case Code::kPermissionDenied: return "permission_denied";
    case Code::kUnimplemented: return "unimplemented";
    case Code::kInternal: return "internal";
  }
  return "unknown";
}

std::string Status::ToString() const {
  if (ok()) return "ok";
  return std::string(CodeName(code_)) + ": " + message_;
}

Status InvalidArgument(std::string m) { return {Code::kInvalidArgument, std::move(m)}; }
Status FailedPrecondition(std::string m) { return {Code::kFailedPrecondition, std::move(m)}; }
Status NotFound(std::string m) { return {Code::kNotFound, std::move(m)}; }
Status AlreadyExists(std::string m) { return {Code::kAlreadyExists, std::move(m)}; }
Status Unavailable(std::string m) { return {Code::kUnavailable, std::move(m)}; }
Status DeadlineExceeded(std::string m) { return {Code::kDeadlineExceeded, std::move(m)}; }
Status Interrupted(std::string m) { return {Code::kInterrupted, std::move(m)}; }
Status Fenced(std::string m) { return {Code::kFenced, std::move(m)}; }
Status DataLoss(std::string m) { return {Code::kDataLoss, std::move(m)}; }
Status ResourceExhausted(std::string m) { return {Code::kResourceExhausted, std::move(m)}; }
Status PermissionDenied(std::string m) { return {Code::kPermissionDenied, std::move(m)}; }
Status Unimplemented(std::string m) { return {Code::kUnimplemented, std::move(m)}; }
Status Internal(std::string m) { return {Code::kInternal, std::move(m)}; }

namespace {
Code CodeOfErrno(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR: return Code::kNotFound;
    case EEXIST: return Code::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS: return Code::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM: return Code::kResourceExhausted;
    case ETIMEDOUT: return Code::kDeadlineExceeded;
    case EAGAIN:
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case EHOSTUNREACH:
    case ENETUNREACH: return Code::kUnavailable;
    case EINVAL: return Code::kInvalidArgument;
    default: return Code::kInternal;
  }
}
}  // namespace

Status FromErrno(int error_number, std::string_view what) {
  return {CodeOfErrno(error_number),
          std::string(what) + ": " + std::generic_category().message(error_number)};
}

}  // namespace muster
