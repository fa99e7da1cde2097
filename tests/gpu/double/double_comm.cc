#include "tests/gpu/double/double_comm.h"

#include <algorithm>
#include <utility>

#include "tests/gpu/double/double_hooks.h"

namespace muster::gpu_double {

Comm::Comm(int number, int world_size, int rank, bool blocking, std::string label)
    : number_(number),
      world_size_(world_size),
      rank_(rank),
      blocking_(blocking),
      label_(std::move(label)) {}

Moment Comm::MomentOf(int op) const {
  Moment moment;
  moment.comm = number_;
  moment.rank = rank_;
  moment.op = op;
  moment.label = label_;
  return moment;
}

// ---- Jobs ---------------------------------------------------------------------------------------

ncclResult_t Comm::Begin(Job job) {
  if (blocking_) {
    const ncclResult_t result = job();
    const std::lock_guard lock(mutex_);
    result_ = result;
    return result;
  }
  const std::lock_guard lock(mutex_);
  state_ = State::kBusy;
  job_ = std::move(job);
  if (!thread_.joinable()) thread_ = std::thread([this] { Work(); });
  changed_.notify_all();
  return ncclInProgress;
}

void Comm::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return job_ != nullptr || leaving_; });
    if (job_ == nullptr) return;
    Job job = std::exchange(job_, nullptr);
    lock.unlock();
    const ncclResult_t result = job();
    lock.lock();
    result_ = result;
    state_ = State::kUnseen;
    changed_.notify_all();
  }
}

ncclResult_t Comm::GetAsyncError(ncclResult_t* error) {
  std::unique_lock lock(mutex_);
  if (state_ == State::kBusy) {
    *error = ncclInProgress;
    return ncclSuccess;
  }
  state_ = State::kReady;
  if (result_ == ncclSuccess && async_error_ == ncclSuccess && met_) {
    const Fault* const fault = Struck("async-error", MomentOf(operations_));
    if (fault != nullptr) {
      async_error_ = ErrorOf(*fault, ncclRemoteError);
      stop_.Raise();
    }
  }
  *error = result_ != ncclSuccess ? result_ : async_error_;
  const bool done = result_ == ncclSuccess;  // whatever has come over the operations since
  lock.unlock();
  if (done) ReleaseStreams();
  return ncclSuccess;
}

ncclResult_t Comm::Ready(bool to_destroy) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kReady) {
    Explain("Attempt to use communicator before the previous operation returned ncclSuccess");
    return ncclInvalidArgument;
  }
  if (to_destroy) return ncclSuccess;
  if (result_ != ncclSuccess) return result_;
  if (finalized_) {
    Explain("the communicator was finalized");
    return ncclInvalidUsage;
  }
  return async_error_;
}

void Comm::ReleaseStreams() {
  std::vector<cudaStream_t> held;
  {
    const std::lock_guard lock(mutex_);
    held.swap(held_);
  }
  for (cudaStream_t stream : held) muster_double_hold(stream, -1);
}

ncclResult_t Comm::LosePeer() {
  const std::string profile = Environment("MUSTER_DOUBLE_PEER_DEATH", "told");
  if (profile == "silent") {
    static_cast<void>(abort_.Wait());
  } else if (profile != "told") {
    abort_.Wait(static_cast<int>(EnvironmentNumber("MUSTER_DOUBLE_PEER_DEATH", 0)));
  }
  Explain("a peer has closed its connection");
  return abort_.raised() ? ncclInternalError : ncclRemoteError;
}

// ---- Meeting and connecting ---------------------------------------------------------------------

ncclResult_t Comm::Init(const ncclUniqueId& id) {
  // The device is the calling thread's.
  return Begin([this, id, bus = BusHash()] { return Meet(id, bus); });
}

ncclResult_t Comm::Meet(const ncclUniqueId& id, std::uint64_t bus) {
  if (Struck("init-hang", MomentOf(0)) != nullptr) {
    static_cast<void>(abort_.Wait());
    return ncclInternalError;
  }
  if (const Fault* const fault = Struck("init-error", MomentOf(0))) {
    return ErrorOf(*fault, ncclSystemError);
  }
  std::uint16_t port = 0;
  listener_ = Listen(&port);
  const Member self{MagicOf(id), world_size_, rank_, HostHash(), bus, port, 0};
  switch (CheckIn(id, self, abort_, &members_)) {
    case CheckedIn::kDone: break;
    case CheckedIn::kInterrupted: return ncclInternalError;
    case CheckedIn::kPeerGone: return LosePeer();
    case CheckedIn::kRefused:
      Explain("the id has this rank already, or another world size");
      return ncclInternalError;
  }
  for (const Member& other : members_) {
    if (other.rank != rank_ && other.host == self.host && other.bus == self.bus) {
      Explain("Duplicate GPU detected : rank " + std::to_string(rank_) + " and rank " +
              std::to_string(other.rank) + " both on one CUDA device");
      return ncclInvalidUsage;
    }
  }
  switch (control_.Form(members_, rank_, Mesh::kControl, listener_, abort_)) {
    case Outcome::kDone: break;
    case Outcome::kInterrupted: return ncclInternalError;
    case Outcome::kPeerGone: return LosePeer();
  }
  const std::lock_guard lock(mutex_);
  met_ = true;
  return ncclSuccess;
}

ncclResult_t Comm::Connect() {
  if (connected_) return ncclSuccess;
  if (Struck("connect-hang", MomentOf(1)) != nullptr) {
    static_cast<void>(abort_.Wait());
    return ncclInternalError;
  }
  switch (data_.Form(members_, rank_, Mesh::kData, listener_, abort_)) {
    case Outcome::kDone: break;
    case Outcome::kInterrupted: return ncclInternalError;
    case Outcome::kPeerGone: return LosePeer();
  }
  listener_.Close();
  connected_ = true;
  return ncclSuccess;
}

// ---- Operations ---------------------------------------------------------------------------------

ncclResult_t Comm::Launch(std::vector<Operation> operations) {
  if (muster_double_context_error() != cudaSuccess) {
    Explain("the CUDA context is broken");
    return ncclUnhandledCudaError;
  }
  {
    const std::lock_guard lock(mutex_);
    for (Operation& operation : operations) {
      operation.number = ++operations_;
      operation.sequence = operation.kind == Kind::kPairs ? 0 : ++collectives_;
      if (const Fault* const fault = Struck("collective-error", MomentOf(operation.number))) {
        return result_ = ErrorOf(*fault, ncclInternalError);
      }
    }
    for (const Operation& operation : operations) {
      if (!blocking_) held_.push_back(operation.stream);
    }
  }
  for (const Operation& operation : operations) {
    if (!blocking_) muster_double_hold(operation.stream, 1);
  }
  return Begin([this, operations = std::move(operations)] { return PutOnStreams(operations); });
}

ncclResult_t Comm::PutOnStreams(const std::vector<Operation>& operations) {
  const ncclResult_t connected = Connect();
  if (connected != ncclSuccess) return connected;
  for (const Operation& operation : operations) {
    std::uint64_t ticket = 0;
    {
      const std::lock_guard lock(mutex_);
      ticket = tickets_++;
    }
    PutOnStream(shared_from_this(), operation, ticket);
  }
  return ncclSuccess;
}

// ---- The end ------------------------------------------------------------------------------------

ncclResult_t Comm::Finalize() {
  {
    const std::lock_guard lock(mutex_);
    finalized_ = true;
  }
  return Begin([this] { return Flush(); });
}

ncclResult_t Comm::Flush() {
  if (Struck("finalize-hang", MomentOf(0)) != nullptr) {
    static_cast<void>(abort_.Wait());
    return ncclInternalError;
  }
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return turn_ == tickets_ || abort_.raised(); });
  }
  // All ranks say so to all; one that is dead never does, and an end of its connection is not taken
  // for it.
  char bye = 'F';
  for (const Socket& link : control_.links()) {
    if (link.open()) static_cast<void>(Send(link, &bye, 1, abort_));
  }
  for (const Socket& link : control_.links()) {
    if (!link.open() || Receive(link, &bye, 1, abort_) == Outcome::kDone) continue;
    static_cast<void>(abort_.Wait());
    return ncclInternalError;
  }
  return ncclSuccess;
}

bool Comm::SameHost(std::size_t peer) const {
  return members_[peer].host == members_[static_cast<std::size_t>(rank_)].host;
}

// Leaves the others; waits for those of this host to leave, abort or die.
void Comm::CloseControl() {
  std::vector<Socket>& links = control_.links();
  for (std::size_t peer = 0; peer < links.size(); ++peer) {
    if (links[peer].open() && !SameHost(peer)) links[peer].Close();
  }
  // First to all, then from all: otherwise two that wait for a third would not hear each other.
  for (const Socket& link : links) SayLast(link);
  for (Socket& link : links) CloseTogether(link);
}

ncclResult_t Comm::Destroy() {
  if (Struck("destroy-hang", MomentOf(0)) != nullptr) HangForEver();
  bool flush = false;
  {
    const std::lock_guard lock(mutex_);
    flush = met_ && !finalized_;
  }
  if (flush) {
    const ncclResult_t flushed = Flush();
    if (flushed != ncclSuccess) return flushed;
  }
  CloseControl();
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  muster_double_wait_device();
  return ncclSuccess;
}

ncclResult_t Comm::Abort() {
  Moment moment;
  {
    const std::lock_guard lock(mutex_);
    moment = MomentOf(operations_);
    if (users_ > 0) Die("ncclCommAbort while another thread is in a call on the communicator");
    if (aborting_) Die("ncclCommAbort twice at once");
    aborting_ = true;
    leaving_ = true;
    abort_.Raise();
    stop_.Raise();
    changed_.notify_all();
  }
  if (Struck("abort-hang", moment) != nullptr) HangForEver();
  if (const Fault* const fault = Struck("abort-slow", moment)) {
    const Interrupt never;
    static_cast<void>(never.Wait(fault->ms));
  }
  if (thread_.joinable()) thread_.join();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !running_; });
  }
  data_.Close();
  CloseControl();
  listener_.Close();
  ReleaseStreams();
  if (met_) muster_double_wait_device();  // its buffers are freed
  if (Struck("abort-sticky", moment) != nullptr) {
    muster_double_break_context(cudaErrorIllegalAddress);
  }
  return ncclSuccess;
}

void Comm::Enter() {
  const std::lock_guard lock(mutex_);
  if (aborting_) Die("a call on a communicator while it is being aborted");
  ++users_;
}

void Comm::Leave() {
  const std::lock_guard lock(mutex_);
  --users_;
}

}  // namespace muster::gpu_double
