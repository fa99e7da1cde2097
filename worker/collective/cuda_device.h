// A device over the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "worker/collective/cuda_api.h"
#include "worker/collective/device.h"

namespace muster {

class CudaDevice final : public Device {
 public:
  [[nodiscard]] static Result<std::shared_ptr<Device>> Open(const CudaApi& api, int ordinal);
  ~CudaDevice() override;

  [[nodiscard]] int ordinal() const override { return ordinal_; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  Status MakeCurrent() const override;
  [[nodiscard]] Result<DeviceMemory> Allocate(std::size_t bytes) override;
  [[nodiscard]] Result<DeviceMemory> AllocatePinned(std::size_t bytes) override;
  [[nodiscard]] bool IsDeviceMemory(const void* address) const override;
  [[nodiscard]] Result<std::pair<std::size_t, std::size_t>> MemoryInfo() const override;
  [[nodiscard]] Result<std::unique_ptr<DeviceStream>> MakeStream() override;
  [[nodiscard]] std::unique_ptr<DeviceStream> Adopt(void* native_stream) override;
  [[nodiscard]] Result<Kernel> Find(std::span<const unsigned char> image,
                                    const std::string& function) override;
  [[nodiscard]] Status Check(Duration limit) override;

  [[nodiscard]] const CudaApi& api() const { return api_; }

 private:
  CudaDevice(const CudaApi& api, int ordinal) : api_(api), ordinal_(ordinal) {}
  void Free(void* data, bool pinned) noexcept override;
  [[nodiscard]] Status PrepareCheck();
  [[nodiscard]] Status Probe(Duration limit);

  const CudaApi& api_;
  const int ordinal_;
  std::string name_;

  std::mutex modules_mutex_;
  std::map<const unsigned char*, cudaLibrary_t> modules_;  // by image

  // Check() allocates nothing: memory is not to be had when a kernel hangs.
  std::mutex check_mutex_;
  std::unique_ptr<DeviceStream> check_stream_;
  Kernel probe_;
  void* probe_device_ = nullptr;
  void* probe_host_ = nullptr;
};

}  // namespace muster
