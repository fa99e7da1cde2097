// The double of the CUDA runtime behaves as Muster expects of the real one.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/processes.h"
#include "worker/collective/reduction_tree.h"

namespace muster::gpu_double {
namespace {

void Ok(cudaError_t error) { REQUIRE(error == cudaSuccess); }

void ExpectWell(const End& end) {
  EXPECT_EQ(end.exit_code, 0) << "signal " << end.signal << ": " << end.output;
}

void ExpectAborts(const End& end, const std::string& why) {
  EXPECT_EQ(end.signal, SIGABRT) << end.output;
  EXPECT_NE(end.output.find(why), std::string::npos) << end.output;
}

template <class T>
T* DeviceArray(std::size_t count) {
  void* address = nullptr;
  Ok(cudaMalloc(&address, count * sizeof(T)));
  return static_cast<T*>(address);
}

cudaStream_t NewStream() {
  cudaStream_t stream = nullptr;
  Ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

void AwaitStream(cudaStream_t stream) {
  Until([&] { return cudaStreamQuery(stream) != cudaErrorNotReady; });
  Ok(cudaStreamQuery(stream));
}

const void* KernelOf(const char* name) {
  static const char image[] = "not looked at";
  cudaLibrary_t library = nullptr;
  Ok(cudaLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0));
  cudaKernel_t kernel = nullptr;
  Ok(cudaLibraryGetKernel(&kernel, library, name));
  return kernel;
}

// Launches with 8-byte arguments.
void Launch(const char* name, std::vector<std::uint64_t> arguments, cudaStream_t stream) {
  std::vector<void*> pointers;
  for (std::uint64_t& argument : arguments) pointers.push_back(&argument);
  Ok(cudaLaunchKernel(KernelOf(name), dim3(1), dim3(32), pointers.data(), 0, stream));
}

std::uint64_t Bits(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }
std::uint64_t Bits(double value) { return std::bit_cast<std::uint64_t>(value); }

template <class T>
T* Upload(const std::vector<T>& values, cudaStream_t stream) {
  T* const array = DeviceArray<T>(values.size());
  Ok(cudaMemcpyAsync(array, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice,
                     stream));
  return array;
}

template <class T>
std::vector<T> Download(const T* array, std::size_t count, cudaStream_t stream) {
  std::vector<T> values(count);
  Ok(cudaMemcpyAsync(values.data(), array, count * sizeof(T), cudaMemcpyDeviceToHost, stream));
  return values;
}

std::vector<float> Floats(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(static_cast<int>(i % 1013) - 500) / 7.0F;
  }
  return values;
}

// Puts the kernel that MUSTER_DOUBLE_FAULTS lets hang on the stream.
void LaunchProbe(cudaStream_t stream) {
  Launch("muster_probe", {Bits(DeviceArray<std::uint32_t>(1))}, stream);
}
const Variables kHang = {{"MUSTER_DOUBLE_FAULTS", "kernel-hang@kernel=muster_probe"}};

TEST(DoubleMemory, IsPoisonedAndCounted) {
  ExpectWell(RunAlone(
      [] {
        auto* const array = DeviceArray<unsigned char>(1000);
        std::size_t free = 0;
        std::size_t total = 0;
        Ok(cudaMemGetInfo(&free, &total));
        REQUIRE(total == 4000 && free == 3000);
        for (const unsigned char byte : Download(array, 1000, NewStream())) REQUIRE(byte == 0xcb);
        void* more = nullptr;
        REQUIRE(cudaMalloc(&more, 3001) == cudaErrorMemoryAllocation);
        REQUIRE(cudaGetLastError() == cudaErrorMemoryAllocation);
        REQUIRE(cudaGetLastError() == cudaSuccess);
        Ok(cudaFree(array));
        Ok(cudaMalloc(&more, 4000));
      },
      {{"MUSTER_DOUBLE_DEVICE_BYTES", "4000"}}));
}

TEST(DoubleMemory, IsOutOfTheHostsReach) {
  const End end = RunAlone([] {
    ::signal(SIGSEGV, SIG_DFL);
    *static_cast<volatile int*>(DeviceArray<int>(1)) = 1;
  });
  EXPECT_EQ(end.signal, SIGSEGV) << end.output;
}

TEST(DoubleMemory, MisuseDies) {
  static char host[100];
  const auto copy = [](void* to, std::size_t bytes) {
    static_cast<void>(cudaMemcpyAsync(to, host, bytes, cudaMemcpyDefault, NewStream()));
  };
  ExpectAborts(RunAlone([] { static_cast<void>(cudaFree(host)); }), "no device allocation");
  ExpectAborts(RunAlone([] { static_cast<void>(cudaFreeHost(host)); }), "no pinned allocation");
  ExpectAborts(RunAlone([] { static_cast<void>(cudaFree(DeviceArray<char>(9) + 1)); }),
               "no device allocation");
  ExpectAborts(RunAlone([&] { copy(DeviceArray<char>(99), 100); }), "run beyond");
  ExpectAborts(RunAlone([&] {
                 char* const array = DeviceArray<char>(100);
                 Ok(cudaFree(array));
                 copy(array, 1);
               }),
               "was freed");
  ExpectAborts(RunAlone([&] {
                 static_cast<void>(cudaMemcpyAsync(DeviceArray<char>(9), host, 9,
                                                   cudaMemcpyDeviceToHost, NewStream()));
               }),
               "kinds of memory");
}

TEST(DoubleMemory, PointersAreToldApart) {
  ExpectWell(RunAlone([] {
    int ordinary = 0;
    void* pinned = nullptr;
    Ok(cudaHostAlloc(&pinned, 100, cudaHostAllocDefault));
    cudaPointerAttributes attributes{};
    Ok(cudaPointerGetAttributes(&attributes, &ordinary));
    REQUIRE(attributes.type == cudaMemoryTypeUnregistered);
    Ok(cudaPointerGetAttributes(&attributes, static_cast<char*>(pinned) + 99));
    REQUIRE(attributes.type == cudaMemoryTypeHost);
    Ok(cudaPointerGetAttributes(&attributes, DeviceArray<int>(100) + 50));
    REQUIRE(attributes.type == cudaMemoryTypeDevice);
    Ok(cudaFreeHost(pinned));
  }));
}

TEST(DoubleMemory, RunsOutWhereAsked) {
  ExpectWell(RunAlone(
      [] {
        void* address = nullptr;
        Ok(cudaMalloc(&address, 1));
        REQUIRE(cudaMalloc(&address, 1) == cudaErrorMemoryAllocation);
        REQUIRE(address == nullptr);
        Ok(cudaMalloc(&address, 1));
        REQUIRE(cudaHostAlloc(&address, 1, 0) == cudaErrorMemoryAllocation);
        Ok(cudaHostAlloc(&address, 1, 0));
      },
      {{"MUSTER_DOUBLE_FAULTS", "out-of-memory@n=2,out-of-pinned-memory@n=1"}}));
}

TEST(DoubleStreams, RunInOrderAndWaitForEachOther) {
  ExpectWell(RunAlone([] {
    cudaStream_t first = NewStream();
    cudaStream_t second = NewStream();
    cudaEvent_t event = nullptr;
    Ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    Ok(cudaEventQuery(event));  // never recorded: nothing to wait for
    const std::size_t size = 1 << 20;
    auto* const a = DeviceArray<unsigned char>(size);
    auto* const b = DeviceArray<unsigned char>(size);
    for (int round = 1; round <= 20; ++round) {
      Ok(cudaMemsetAsync(a, round, size, first));
      Ok(cudaEventRecord(event, first));
      Ok(cudaStreamWaitEvent(second, event, 0));
      Ok(cudaMemcpyAsync(b, a, size, cudaMemcpyDeviceToDevice, second));
      const auto seen = Download(b, size, second);  // ordinary memory: it waits
      REQUIRE(seen.front() == round && seen.back() == round);
    }
    Ok(cudaEventDestroy(event));
    Ok(cudaStreamDestroy(first));
    AwaitStream(second);
  }));
}

TEST(DoubleStreams, DestroyedOnesDieOfUse) {
  ExpectAborts(RunAlone([] {
                 cudaStream_t stream = NewStream();
                 Ok(cudaStreamDestroy(stream));
                 static_cast<void>(cudaStreamQuery(stream));
               }),
               "stream that was destroyed");
  ExpectAborts(RunAlone([] {
                 cudaEvent_t event = nullptr;
                 Ok(cudaEventCreateWithFlags(&event, 0));
                 Ok(cudaEventDestroy(event));
                 static_cast<void>(cudaEventQuery(event));
               }),
               "event that was destroyed");
}

TEST(DoubleStreams, AHungKernelHoldsItsStreamAndWhoFreesMemory) {
  ExpectWell(RunAlone(
      [] {
        cudaStream_t hung = NewStream();
        cudaStream_t other = NewStream();
        auto* const array = DeviceArray<char>(100);
        cudaEvent_t event = nullptr;
        Ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        LaunchProbe(hung);
        Ok(cudaEventRecord(event, hung));
        std::atomic<bool> freed = false;
        std::atomic<bool> copied = false;
        std::thread([&] { freed = cudaFree(array) == cudaSuccess; }).detach();
        std::thread([&, page = std::vector<char>(1)]() mutable {
          copied = cudaMemcpyAsync(page.data(), array, 1, cudaMemcpyDeviceToHost, hung) == 0;
        }).detach();
        Stays([&] { return cudaEventQuery(event) == cudaErrorNotReady && !freed && !copied; });
        REQUIRE(cudaGetLastError() == cudaErrorNotReady);
        Ok(cudaMemsetAsync(array, 1, 100, other));  // another stream runs on
        AwaitStream(other);
        Leave();
      },
      kHang));
}

TEST(DoubleStreams, PinnedMemoryIsCopiedBehindTheCallersBack) {
  ExpectWell(RunAlone(
      [] {
        cudaStream_t hung = NewStream();
        void* pinned = nullptr;
        Ok(cudaHostAlloc(&pinned, 100, cudaHostAllocDefault));
        auto* const array = DeviceArray<char>(100);
        LaunchProbe(hung);
        Ok(cudaMemcpyAsync(pinned, array, 100, cudaMemcpyDeviceToHost, hung));  // returns
        Leave();
      },
      kHang));
}

TEST(DoubleContext, AnErrorOfAKernelStays) {
  ExpectWell(RunAlone(
      [] {
        cudaStream_t stream = NewStream();
        LaunchProbe(stream);
        Until([&] { return cudaStreamQuery(stream) != cudaErrorNotReady; });
        REQUIRE(cudaStreamQuery(stream) == cudaErrorIllegalAddress);
        void* address = nullptr;
        REQUIRE(cudaMalloc(&address, 1) == cudaErrorIllegalAddress);
        REQUIRE(cudaGetLastError() == cudaErrorIllegalAddress);
        REQUIRE(cudaGetLastError() == cudaErrorIllegalAddress);
      },
      {{"MUSTER_DOUBLE_FAULTS", "kernel-fault@kernel=muster_probe"}}));
}

TEST(DoubleKernels, AgreeWithTheCpu) {
  ExpectWell(RunAlone([] {
    cudaStream_t stream = NewStream();
    const std::vector<float> values = Floats(3 * 4096 + 17);
    float* const a = Upload(values, stream);
    float* const b = Upload(values, stream);
    Launch("muster_add_f32", {Bits(a), Bits(b), values.size()}, stream);
    Launch("muster_mean_f32", {Bits(a), values.size(), Bits(0.25)}, stream);
    const std::vector<float> means = Download(a, values.size(), stream);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float sum = values[i] + values[i];
      REQUIRE(means[i] == static_cast<float>(static_cast<double>(sum) * 0.25));
    }
    double* const sums = DeviceArray<double>(4);
    Launch("muster_block_squares_f32", {Bits(b), values.size(), Bits(sums)}, stream);
    const std::vector<double> squares = Download(sums, 4, stream);
    REQUIRE((squares[0] + squares[1]) + (squares[2] + squares[3]) == NormSquared(values));
    double* const doubles = Upload(std::vector<double>{1.5, -2}, stream);
    Launch("muster_add_f64", {Bits(doubles), Bits(doubles + 1), 1}, stream);
    REQUIRE(Download(doubles, 1, stream)[0] == -0.5);
    std::uint32_t* const probe = Upload(std::vector<std::uint32_t>{7}, stream);
    Launch("muster_probe", {Bits(probe)}, stream);
    REQUIRE(Download(probe, 1, stream)[0] == 7U * 2654435761U + 1U);
  }));
}

TEST(DoubleKernels, UnknownOnesAreNotFound) {
  ExpectWell(RunAlone([] {
    cudaLibrary_t library = nullptr;
    Ok(cudaLibraryLoadData(&library, "x", nullptr, nullptr, 0, nullptr, nullptr, 0));
    cudaKernel_t kernel = nullptr;
    REQUIRE(cudaLibraryGetKernel(&kernel, library, "no_such") == cudaErrorSymbolNotFound);
  }));
  ExpectWell(RunAlone(
      [] {
        cudaLibrary_t library = nullptr;
        REQUIRE(cudaLibraryLoadData(&library, "x", nullptr, nullptr, 0, nullptr, nullptr, 0) ==
                cudaErrorNoKernelImageForDevice);
      },
      {{"MUSTER_DOUBLE_FAULTS", "no-kernel-image"}}));
}

TEST(DoubleDevices, AreThoseThatAreVisible) {
  ExpectWell(RunAlone(
      [] {
        int count = 0;
        Ok(cudaGetDeviceCount(&count));
        REQUIRE(count == 2);
        char bus[32];
        Ok(cudaDeviceGetPCIBusId(bus, sizeof bus, 1));
        REQUIRE(std::string(bus) == "0000:06:00.0");
        REQUIRE(cudaSetDevice(2) == cudaErrorInvalidDevice);
      },
      {{"CUDA_VISIBLE_DEVICES", "3,5"}}));
  ExpectWell(RunAlone(
      [] {
        int count = -1;
        REQUIRE(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
        REQUIRE(count == 0);
      },
      {{"MUSTER_DOUBLE_DEVICES", "0"}}));
}

TEST(DoubleVersions, AreWhatATestSays) {
  ExpectWell(RunAlone(
      [] {
        int version = 0;
        Ok(cudaRuntimeGetVersion(&version));
        REQUIRE(version == 11080);
        Ok(cudaDriverGetVersion(&version));
        REQUIRE(version == 11040);
      },
      {{"MUSTER_DOUBLE_CUDART_VERSION", "11080"}, {"MUSTER_DOUBLE_DRIVER_VERSION", "11040"}}));
}

}  // namespace
}  // namespace muster::gpu_double
