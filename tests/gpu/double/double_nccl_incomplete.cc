// A libnccl that has its version and nothing else: for what is said of a missing function.
// TEST CODE: built as libmuster_double_nccl_incomplete.so.
extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
