// The directory of the database before RocksDB sees it: what is wrong with it, in words that help.
// Internal to this folder.
#pragma once

#include <string>
#include <string_view>

#include "protocol/status.h"

namespace muster::store {

// Makes sure that `directory` exists (its parent must), is a directory, can be written to, and does
// not hold a database whose head is missing, which RocksDB would silently replace by an empty one.
// Blocks for a few system calls.
[[nodiscard]] Status PrepareDirectory(const std::string& directory);

// kUnavailable: somebody has the lock on it; says who, as far as that can be found out.
// REQUIRES: `by_this_process` is true when this process has it, for looking would lose its lock.
[[nodiscard]] Status InUse(const std::string& directory, bool by_this_process);

// kResourceExhausted: no more can be written there. The same text each time, so that one who tries
// again and again can tell that nothing has changed.
[[nodiscard]] Status Full(const std::string& directory);

// kDataLoss; `why` is what was found.
[[nodiscard]] Status Damaged(const std::string& directory, std::string_view why);

}  // namespace muster::store
