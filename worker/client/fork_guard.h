// Closes descriptors in children made by fork(): a data loader's process would otherwise hold the
// connection to the coordinator open after the worker's death.
#pragma once

namespace muster::worker {

// From now on children close `fd`, until Forget. -1 is ignored. Thread-safe. At most 64 at a time;
// beyond that children keep them.
void CloseInChildren(int fd);
void ForgetInChildren(int fd);

}  // namespace muster::worker
