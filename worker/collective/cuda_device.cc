#include "worker/collective/cuda_device.h"

#include <fmt/format.h>

#include <array>

#include "worker/collective/cuda_stream.h"
#include "worker/collective/device_kernels.h"

namespace muster {

namespace {

constexpr std::size_t kProbeBytes = sizeof(std::uint32_t);

}  // namespace

Result<std::shared_ptr<Device>> CudaDevice::Open(const CudaApi& api, int ordinal) {
  int count = 0;
  MUSTER_RETURN_IF_ERROR(api.Check(api.GetDeviceCount(&count), "looking for GPUs"));
  if (ordinal < 0 || ordinal >= count) {
    return Unavailable(fmt::format("there is no GPU {}: {} visible (CUDA_VISIBLE_DEVICES)", ordinal,
                                   count == 1 ? "1 is" : fmt::format("{} are", count)));
  }
  std::shared_ptr<CudaDevice> device(new CudaDevice(api, ordinal));
  MUSTER_RETURN_IF_ERROR(device->MakeCurrent());
  std::array<char, 32> bus{};
  MUSTER_RETURN_IF_ERROR(
      api.Check(api.DeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), ordinal),
                fmt::format("asking for the address of GPU {}", ordinal)));
  device->name_ = fmt::format("GPU {} ({})", ordinal, bus.data());
  MUSTER_RETURN_IF_ERROR(device->PrepareCheck());
  MUSTER_RETURN_IF_ERROR(device->Check(Duration::Seconds(60)));  // kernels may have to be compiled
  return std::shared_ptr<Device>(std::move(device));
}

CudaDevice::~CudaDevice() {
  (void)MakeCurrent();
  check_stream_.reset();
  if (probe_device_ != nullptr) (void)api_.Free(probe_device_);
  if (probe_host_ != nullptr) (void)api_.FreeHost(probe_host_);
}

Status CudaDevice::MakeCurrent() const {
  // The runtime keeps this for each thread. Not remembered here, for the program selects devices
  // too; selecting the one that is current already costs next to nothing.
  const cudaError_t error = api_.SetDevice(ordinal_);
  if (error == cudaSuccess) return {};
  return api_.Check(error, fmt::format("using GPU {}", ordinal_));
}

Result<DeviceMemory> CudaDevice::Allocate(std::size_t bytes) {
  MUSTER_RETURN_IF_ERROR(MakeCurrent());
  if (bytes == 0) return DeviceMemory();
  void* data = nullptr;
  const Status status =
      api_.Check(api_.Malloc(&data, bytes), fmt::format("allocating {} bytes on {}", bytes, name_));
  if (status.code() == Code::kResourceExhausted) {
    (void)api_.GetLastError();  // it is no error of what follows
    const auto info = MemoryInfo();
    return ResourceExhausted(fmt::format("{}: {} bytes are free there", status.message(),
                                         info.ok() ? info->first : std::size_t{0}));
  }
  if (!status.ok()) return status;
  return DeviceMemory(shared_from_this(), data, bytes, /*pinned=*/false);
}

Result<DeviceMemory> CudaDevice::AllocatePinned(std::size_t bytes) {
  MUSTER_RETURN_IF_ERROR(MakeCurrent());
  if (bytes == 0) return DeviceMemory();
  void* data = nullptr;
  const Status status = api_.Check(api_.HostAlloc(&data, bytes, cudaHostAllocPortable),
                                   fmt::format("allocating {} bytes of pinned memory", bytes));
  if (!status.ok()) {
    (void)api_.GetLastError();
    return status;
  }
  return DeviceMemory(shared_from_this(), data, bytes, /*pinned=*/true);
}

void CudaDevice::Free(void* data, bool pinned) noexcept {
  if (!MakeCurrent().ok()) return;
  (void)(pinned ? api_.FreeHost(data) : api_.Free(data));
}

bool CudaDevice::IsDeviceMemory(const void* address) const {
  if (address == nullptr || !MakeCurrent().ok()) return false;
  cudaPointerAttributes attributes{};
  if (api_.PointerGetAttributes(&attributes, address) != cudaSuccess) {
    (void)api_.GetLastError();
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

Result<std::pair<std::size_t, std::size_t>> CudaDevice::MemoryInfo() const {
  MUSTER_RETURN_IF_ERROR(MakeCurrent());
  std::size_t available = 0;
  std::size_t total = 0;
  MUSTER_RETURN_IF_ERROR(
      api_.Check(api_.MemGetInfo(&available, &total), "asking for the free memory of " + name_));
  return std::pair(available, total);
}

Result<std::unique_ptr<DeviceStream>> CudaDevice::MakeStream() {
  MUSTER_RETURN_IF_ERROR(MakeCurrent());
  cudaStream_t stream = nullptr;
  MUSTER_RETURN_IF_ERROR(api_.Check(api_.StreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                                    "making a stream on " + name_));
  return std::unique_ptr<DeviceStream>(std::make_unique<CudaStream>(
      std::static_pointer_cast<CudaDevice>(shared_from_this()), stream, /*owned=*/true));
}

std::unique_ptr<DeviceStream> CudaDevice::Adopt(void* native_stream) {
  return std::make_unique<CudaStream>(std::static_pointer_cast<CudaDevice>(shared_from_this()),
                                      static_cast<cudaStream_t>(native_stream), /*owned=*/false);
}

Result<Kernel> CudaDevice::Find(std::span<const unsigned char> image, const std::string& function) {
  MUSTER_RETURN_IF_ERROR(MakeCurrent());
  const std::scoped_lock lock(modules_mutex_);
  auto found = modules_.find(image.data());
  if (found == modules_.end()) {
    cudaLibrary_t library = nullptr;
    const cudaError_t error =
        api_.LibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidKernelImage) {
      (void)api_.GetLastError();
      return Unimplemented(fmt::format("the kernels have no code for {}", name_));
    }
    MUSTER_RETURN_IF_ERROR(api_.Check(error, "loading kernels on " + name_));
    found = modules_.emplace(image.data(), library).first;
  }
  cudaKernel_t kernel = nullptr;
  const cudaError_t error = api_.LibraryGetKernel(&kernel, found->second, function.c_str());
  if (error == cudaErrorSymbolNotFound) {
    (void)api_.GetLastError();
    return NotFound(fmt::format("there is no kernel '{}'", function));
  }
  MUSTER_RETURN_IF_ERROR(api_.Check(error, "looking for the kernel " + function));
  return Kernel(kernel);
}

Status CudaDevice::PrepareCheck() {
  Result<Kernel> probe = Find(device_kernels::image(), device_kernels::kProbe);
  if (!probe.ok()) return probe.status();
  probe_ = *probe;
  MUSTER_RETURN_IF_ERROR(
      api_.Check(api_.Malloc(&probe_device_, kProbeBytes), "allocating on " + name_));
  MUSTER_RETURN_IF_ERROR(api_.Check(
      api_.HostAlloc(&probe_host_, kProbeBytes, cudaHostAllocPortable), "pinning memory"));
  // The stream must not keep alive the device that owns it.
  cudaStream_t stream = nullptr;
  MUSTER_RETURN_IF_ERROR(api_.Check(api_.StreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                                    "making a stream on " + name_));
  const std::shared_ptr<const CudaDevice> unowned(std::shared_ptr<const CudaDevice>(), this);
  check_stream_ = std::make_unique<CudaStream>(unowned, stream, /*owned=*/true);
  return {};
}

Status CudaDevice::Probe(Duration limit) {
  MUSTER_RETURN_IF_ERROR(MakeCurrent());
  auto* host = static_cast<std::uint32_t*>(probe_host_);
  const std::uint32_t before = *host * 7 + 3;
  *host = before;
  check_stream_->Copy(probe_device_, probe_host_, kProbeBytes);
  void* arguments[] = {&probe_device_};
  check_stream_->Launch(probe_, 1, 1, arguments);
  check_stream_->Copy(probe_host_, probe_device_, kProbeBytes);
  MUSTER_RETURN_IF_ERROR(check_stream_->Wait(limit, nullptr));
  if (*host != before * 2654435761U + 1) return Internal("it computes wrong");
  return {};
}

Status CudaDevice::Check(Duration limit) {
  const std::scoped_lock lock(check_mutex_);
  const Status status = Probe(limit);
  if (status.ok()) return {};
  if (status.code() == Code::kDeadlineExceeded) {
    return DeadlineExceeded(fmt::format("{} does not answer any more", name_));
  }
  return Internal(fmt::format("{} is lost: {}", name_, status.message()));
}

}  // namespace muster
