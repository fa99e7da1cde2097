// Plain requests of the command-line tools.
#pragma once

#include <string>

#include "protocol/status.h"
#include "protocol/time.h"

namespace muster {

// GET `target` ("/v1/jobs") from the coordinator at `url`; returns the body of a 200. Blocks, at
// most `timeout` (a slow resolver excepted). Other answers become a Status with the text that the
// coordinator sent: 404 kNotFound, 400 kInvalidArgument, 401 and 403 kPermissionDenied, 503
// kUnavailable, others kFailedPrecondition. kUnavailable too when it cannot be reached. The message
// names the URL. Throws nothing; thread-safe.
[[nodiscard]] Result<std::string> HttpGet(const std::string& url, const std::string& target,
                                          const std::string& token, Duration timeout);

// The same for POST: what is wanted stands in the parameters of `target` ("…/drain?node=b").
[[nodiscard]] Result<std::string> HttpPost(const std::string& url, const std::string& target,
                                           const std::string& token, Duration timeout);

}  // namespace muster
