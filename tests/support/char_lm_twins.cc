#include "tests/support/char_lm_twins.h"

#include <array>
#include <utility>

// The kernels themselves, compiled for the host, where one thread is the whole grid and does all
// the work.
#define __global__
#define __device__
namespace {
struct GridExtent {
  unsigned int x;
};
constexpr GridExtent blockIdx{0};
constexpr GridExtent threadIdx{0};
constexpr GridExtent blockDim{1};
constexpr GridExtent gridDim{1};
}  // namespace
#include "worker/examples/char_lm_kernels.cu"
#undef __global__
#undef __device__

namespace muster::testing {
namespace {

// Reads the parameters of a kernel from the 8 bytes of each.
template <class... Parameters, std::size_t... I>
void Call(void (*kernel)(Parameters...), const std::uint64_t* arguments,
          std::index_sequence<I...>) {
  kernel(KernelArgument<Parameters>(arguments[I])...);
}
template <class... Parameters>
void CallWith(void (*kernel)(Parameters...), const std::uint64_t* arguments) {
  Call(kernel, arguments, std::index_sequence_for<Parameters...>());
}
template <class... Parameters>
constexpr std::size_t Count(void (*)(Parameters...)) {
  return sizeof...(Parameters);
}
template <auto Kernel>
constexpr KernelTwin Twin(std::string_view name) {
  return {name, Count(Kernel), [](const std::uint64_t* arguments) { CallWith(Kernel, arguments); }};
}

constexpr std::array<KernelTwin, 7> kTwins = {
    Twin<char_lm_embed>("char_lm_embed"),
    Twin<char_lm_dense>("char_lm_dense"),
    Twin<char_lm_softmax_loss>("char_lm_softmax_loss"),
    Twin<char_lm_input_gradient>("char_lm_input_gradient"),
    Twin<char_lm_layer_gradient>("char_lm_layer_gradient"),
    Twin<char_lm_embedding_gradient>("char_lm_embedding_gradient"),
    Twin<char_lm_adam>("char_lm_adam")};

}  // namespace

std::span<const KernelTwin> CharLmKernelTwins() { return kTwins; }

}  // namespace muster::testing
