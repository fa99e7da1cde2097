// A directory for one test, removed with all that is in it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "protocol/check.h"

namespace muster::test {

class TempDir {
 public:
  TempDir() {
    path_ = (std::filesystem::temp_directory_path() / "muster-test-XXXXXX").string();
    MUSTER_CHECK(mkdtemp(path_.data()) != nullptr, path_);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace muster::test
