// Streams and fences over the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "worker/collective/cuda_device.h"
#include "worker/collective/device.h"

namespace muster {

class CudaStream final : public DeviceStream {
 public:
  // `owned`: destroyed with this.
  CudaStream(std::shared_ptr<const CudaDevice> device, cudaStream_t stream, bool owned);
  ~CudaStream() override;

  void Copy(void* to, const void* from, std::size_t bytes) override;
  void Fill(void* to, std::uint8_t byte, std::size_t bytes) override;
  void Launch(Kernel kernel, std::uint32_t blocks, std::uint32_t threads,
              std::span<void* const> arguments) override;
  [[nodiscard]] std::shared_ptr<Fence> Record() override;
  void After(Fence& fence) override;
  [[nodiscard]] void* native() const override { return stream_; }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] Status Wait(Duration limit, const std::atomic<bool>* interrupted) override;

 private:
  // Keeps the first error.
  void Note(cudaError_t error, const char* what);
  // May work be put here?
  [[nodiscard]] bool Begin();

  const std::shared_ptr<const CudaDevice> device_;
  const cudaStream_t stream_;
  const bool owned_;
  Status status_;
};

}  // namespace muster
