// The tests; with an argument of Child's, what they do in a process of its own.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "tests/coordinator/store/faulty_env.h"
#include "tests/coordinator/store/store_support.h"

int main(int argc, char** argv) {
  if (argc == 4 &&
      (std::string_view(argv[1]) == "--write" || std::string_view(argv[1]) == "--hold")) {
    return muster::store::RunChild(argv[1], argv[2], std::atoi(argv[3]));
  }
  if (argc == 4 && std::string_view(argv[1]).starts_with("--deadly")) {
    return muster::store::RunDeadly(argv[1], argv[2], std::atoi(argv[3]));
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
