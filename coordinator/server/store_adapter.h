// Between the core's effects and the store, which does not know the core.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coordinator/server/driver.h"
#include "coordinator/store/store_writer.h"
#include "protocol/status.h"

namespace muster::coordinator {

// The store of a data directory, opened, with what it remembers.
struct OpenedStore {
  std::unique_ptr<store::StoreWriter> writer;
  std::vector<StoredJob> jobs;
};
// Blocks. See store::Journal::Open for the errors.
[[nodiscard]] Result<OpenedStore> OpenStore(const std::string& data_directory);

// Makes the driver's batches durable through `writer`, which outlives the driver.
[[nodiscard]] PersistFunction PersistThrough(store::StoreWriter& writer);

}  // namespace muster::coordinator
