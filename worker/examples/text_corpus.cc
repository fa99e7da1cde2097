#include "worker/examples/text_corpus.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace char_lm {
namespace {

constexpr char kLicences[] = "/usr/share/common-licenses";

}  // namespace

muster::Result<std::vector<std::string>> TextCorpus::LicenceFiles() {
  std::error_code error;
  std::vector<std::string> files;
  // Links are left out: they name versions that are there under their own name.
  for (std::filesystem::directory_iterator entry(kLicences, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored) && !entry->is_symlink(ignored)) {
      files.push_back(entry->path().string());
    }
  }
  if (files.empty()) {
    return muster::NotFound(std::string(kLicences) +
                            " has no texts to train on; name some with --text FILE…");
  }
  std::sort(files.begin(), files.end());
  return files;
}

muster::Result<TextCorpus> TextCorpus::Load(const std::vector<std::string>& files) {
  std::string text;
  for (const std::string& file : files) {
    std::error_code error;
    if (std::filesystem::is_directory(file, error)) {
      return muster::InvalidArgument(file + " is a directory; --text takes files");
    }
    errno = 0;
    std::ifstream in(file, std::ios::binary);
    if (!in) return muster::FromErrno(errno, "cannot read the text " + file);
    text.append(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  if (text.empty()) {
    return muster::InvalidArgument("there is no text to train on: the given files are empty");
  }
  return TextCorpus(text);
}

TextCorpus::TextCorpus(const std::string& text) {
  std::array<int, 256> number{};
  for (const char c : text) number[static_cast<unsigned char>(c)] = 1;
  for (int& n : number) n = n != 0 ? vocabulary_++ : -1;
  symbols_.reserve(text.size());
  for (const char c : text) {
    symbols_.push_back(static_cast<Symbol>(number[static_cast<unsigned char>(c)]));
  }
}

std::int64_t TextCorpus::samples(int context) const {
  return std::max<std::int64_t>(0, size() - context);
}

std::span<const Symbol> TextCorpus::Window(std::int64_t index, int context) const {
  return std::span(symbols_).subspan(static_cast<std::size_t>(index),
                                     static_cast<std::size_t>(context) + 1);
}

}  // namespace char_lm
