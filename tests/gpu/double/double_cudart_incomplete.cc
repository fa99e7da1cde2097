// A CUDA runtime that has its versions and nothing else: for what is said of a missing function.
// TEST CODE: built as libmuster_double_cudart_incomplete.so.
extern "C" __attribute__((visibility("default"))) int cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return 0;
}
extern "C" __attribute__((visibility("default"))) int cudaDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
