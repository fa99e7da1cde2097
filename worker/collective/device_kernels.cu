// Muster's kernels: the arithmetic of reduce.cc and reduction_tree.cc on a device, with the same
// result bit for bit (which bits a NaN has aside). Compiled with -fmad=false: a fused multiply-add
// rounds once where the host rounds twice.
//
// Every parameter has 8 bytes, every grid one dimension, and every loop works with any grid.

namespace {

using Index = long long;

__device__ Index First() { return blockIdx.x * static_cast<Index>(blockDim.x) + threadIdx.x; }
__device__ Index Stride() { return gridDim.x * static_cast<Index>(blockDim.x); }

template <class T>
__device__ void Add(T* __restrict__ into, const T* __restrict__ from, Index n) {
  for (Index i = First(); i < n; i += Stride()) into[i] += from[i];
}

// As block_sums.h has them.
constexpr Index kBlock = 4096;
constexpr Index kLanes = 8;
constexpr unsigned kWholeWarp = 0xFFFFFFFFU;

}  // namespace

extern "C" __global__ void muster_add_f32(float* into, const float* from, Index n) {
  Add(into, from, n);
}

extern "C" __global__ void muster_add_f64(double* into, const double* from, Index n) {
  Add(into, from, n);
}

extern "C" __global__ void muster_mean_f32(float* values, Index n, double scale) {
  for (Index i = First(); i < n; i += Stride()) {
    values[i] = static_cast<float>(static_cast<double>(values[i]) * scale);
  }
}

// Eight neighbouring threads are the eight lanes of a block of values, and a warp has four blocks
// at a time. REQUIRES: blockDim.x is a multiple of 32.
extern "C" __global__ void muster_block_squares_f32(const float* values, Index n, double* sums) {
  const Index blocks = (n + kBlock - 1) / kBlock;
  const Index lane = First() % kLanes;
  const Index group = First() / kLanes;
  const Index groups = Stride() / kLanes;
  const Index first_of_warp = group - group % 4;
  // The same number of rounds for all threads of a warp, which meet in the shuffles.
  for (Index round = first_of_warp; round < blocks; round += groups) {
    const Index block = round + (group - first_of_warp);
    const Index begin = block * kBlock;
    const Index end = begin + kBlock < n ? begin + kBlock : n;  // before `begin` when there is none
    double sum = 0;
#pragma unroll 8
    for (Index i = begin + lane; i < end; i += kLanes) {
      const double value = static_cast<double>(values[i]);
      sum += value * value;
    }
    // Into lane 0: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
    sum += __shfl_down_sync(kWholeWarp, sum, 1, kLanes);
    sum += __shfl_down_sync(kWholeWarp, sum, 2, kLanes);
    sum += __shfl_down_sync(kWholeWarp, sum, 4, kLanes);
    if (lane == 0 && block < blocks) sums[block] = sum;
  }
}

extern "C" __global__ void muster_probe(unsigned int* value) {
  if (First() == 0) *value = *value * 2654435761U + 1U;
}
