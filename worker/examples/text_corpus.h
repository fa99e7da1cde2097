// Text as training samples: each sample is a window of consecutive characters and the one that
// follows. Immutable once loaded, so any number of threads may read it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "protocol/status.h"

namespace char_lm {

// The number of a character among those that occur in the text, in the order of their bytes.
using Symbol = std::uint8_t;

class TextCorpus {
 public:
  // The texts that every Debian system ships: the regular files of /usr/share/common-licenses, in
  // the order of their names. kNotFound says how to train on other files when they are missing.
  [[nodiscard]] static muster::Result<std::vector<std::string>> LicenceFiles();

  // Reads `files` one behind another. kNotFound or kPermissionDenied names the file that cannot be
  // read; kInvalidArgument when all of them together are empty.
  [[nodiscard]] static muster::Result<TextCorpus> Load(const std::vector<std::string>& files);

  // The same, from memory. REQUIRES: `text` is not empty.
  explicit TextCorpus(const std::string& text);

  // Different characters in the text: symbols are below this.
  [[nodiscard]] int vocabulary() const { return vocabulary_; }
  // Characters.
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(symbols_.size()); }
  // Windows of `context` characters that have a next one; 0 when the text is too short.
  [[nodiscard]] std::int64_t samples(int context) const;
  // Sample `index`: `context` symbols and then the one to predict. Valid as long as the corpus.
  // REQUIRES: 0 <= index < samples(context)
  [[nodiscard]] std::span<const Symbol> Window(std::int64_t index, int context) const;

 private:
  std::vector<Symbol> symbols_;
  int vocabulary_ = 0;
};

}  // namespace char_lm
