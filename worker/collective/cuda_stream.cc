#include "worker/collective/cuda_stream.h"

#include <fmt/format.h>

#include "worker/collective/fence_poll.h"

namespace muster {
namespace {

class CudaFence final : public Fence {
 public:
  CudaFence(std::shared_ptr<const CudaDevice> device, cudaEvent_t event, Status status)
      : device_(std::move(device)), event_(event), status_(std::move(status)) {}
  ~CudaFence() override {
    if (event_ != nullptr && device_->MakeCurrent().ok()) (void)device_->api().EventDestroy(event_);
  }
  CudaFence(const CudaFence&) = delete;
  CudaFence& operator=(const CudaFence&) = delete;

  [[nodiscard]] Result<bool> Passed() override {
    if (!status_.ok()) return status_;
    if (passed_) return true;
    MUSTER_RETURN_IF_ERROR(device_->MakeCurrent());
    const cudaError_t error = device_->api().EventQuery(event_);
    if (error == cudaErrorNotReady) {
      // It is no error, and the loop would find it where it looks for its own.
      (void)device_->api().GetLastError();
      return false;
    }
    status_ = device_->api().Check(error, "waiting for " + device_->name());
    if (!status_.ok()) return status_;
    passed_ = true;
    return true;
  }
  [[nodiscard]] cudaEvent_t event() const { return event_; }
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  const std::shared_ptr<const CudaDevice> device_;
  const cudaEvent_t event_;  // null when it could not be made
  Status status_;
  bool passed_ = false;
};

}  // namespace

CudaStream::CudaStream(std::shared_ptr<const CudaDevice> device, cudaStream_t stream, bool owned)
    : device_(std::move(device)), stream_(stream), owned_(owned) {}

CudaStream::~CudaStream() {
  if (owned_ && device_->MakeCurrent().ok()) (void)device_->api().StreamDestroy(stream_);
}

void CudaStream::Note(cudaError_t error, const char* what) {
  if (error == cudaSuccess || !status_.ok()) return;
  status_ = device_->api().Check(error, fmt::format("{} on {}", what, device_->name()));
}

bool CudaStream::Begin() {
  if (!status_.ok()) return false;
  status_ = device_->MakeCurrent();
  return status_.ok();
}

void CudaStream::Copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0 || !Begin()) return;
  Note(device_->api().MemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copying");
}

void CudaStream::Fill(void* to, std::uint8_t byte, std::size_t bytes) {
  if (bytes == 0 || !Begin()) return;
  Note(device_->api().MemsetAsync(to, byte, bytes, stream_), "filling");
}

void CudaStream::Launch(Kernel kernel, std::uint32_t blocks, std::uint32_t threads,
                        std::span<void* const> arguments) {
  if (blocks == 0 || !Begin()) return;
  Note(device_->api().LaunchKernel(kernel.handle(), dim3{blocks, 1, 1}, dim3{threads, 1, 1},
                                   const_cast<void**>(arguments.data()), 0, stream_),
       "launching a kernel");
}

std::shared_ptr<Fence> CudaStream::Record() {
  cudaEvent_t event = nullptr;
  if (Begin()) {
    Note(device_->api().EventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
    if (status_.ok()) Note(device_->api().EventRecord(event, stream_), "recording an event");
  }
  return std::make_shared<CudaFence>(device_, event, status_);
}

void CudaStream::After(Fence& fence) {
  if (!Begin()) return;
  auto& other = static_cast<CudaFence&>(fence);
  if (!other.status().ok()) {
    status_ = other.status();
    return;
  }
  Note(device_->api().StreamWaitEvent(stream_, other.event(), 0), "waiting for another stream");
}

Status CudaStream::Wait(Duration limit, const std::atomic<bool>* interrupted) {
  const std::shared_ptr<Fence> fence = Record();
  return PollUntilPassed(*fence, limit, interrupted, nullptr);
}

}  // namespace muster
