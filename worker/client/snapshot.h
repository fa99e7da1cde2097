// A rank's part of the state at one step, by value.
#pragma once

#include <cstdint>
#include <memory>

#include "checkpoint/aligned_buffer.h"
#include "checkpoint/io_pool.h"
#include "checkpoint/writer.h"
#include "protocol/status.h"
#include "worker/client/state_table.h"
#include "worker/collective/device.h"

namespace muster::worker {

// Gives `data` room for a snapshot of `bytes` bytes: of `pinned` (StateTable::SnapshotMemory())
// unless that is null. When there is not so much pinned memory, a line on stderr says so, and the
// buffer gets ordinary memory, now and whenever it grows: copies from a device to it are waited
// for, by way of a bounded piece of pinned memory. kResourceExhausted when there is neither.
Status MakeRoom(std::int64_t bytes, const checkpoint::BufferMemory& pinned,
                checkpoint::AlignedBuffer* data);

// Copies what the plan's rank stores of the state as it is now into `data`, as the data of its
// file: each part row-major, one right after the other. Nothing of the state is read once this has
// returned. As fast as a copy of so many bytes when `data` has the capacity, and no faster than its
// memory can be had otherwise. kResourceExhausted when there is no memory for the copy.
//
// Copies of tensors that lie on a device run after what the user's stream has been given so far,
// and what it is given from now on runs after them. `*ready` becomes the fence behind them, before
// which `data` must not be read (null: there are none); without `ready` this waits for them. `data`
// gets pinned memory then, if there is enough (MakeRoom).
// REQUIRES: the plan's tensors are those of the table. Training thread.
Status TakeSnapshot(const StateTable& table, const checkpoint::ShardPlan& plan,
                    checkpoint::IoPool& pool, checkpoint::AlignedBuffer* data,
                    std::shared_ptr<Fence>* ready = nullptr);

}  // namespace muster::worker
