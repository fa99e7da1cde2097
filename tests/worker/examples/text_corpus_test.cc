#include "worker/examples/text_corpus.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace char_lm {
namespace {

class TextCorpusTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/corpus-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  std::string directory_;
};

TEST_F(TextCorpusTest, SymbolsAreNumberedInTheOrderOfTheirBytes) {
  const TextCorpus corpus("banana\xff");
  EXPECT_EQ(corpus.vocabulary(), 4);
  EXPECT_EQ(corpus.size(), 7);
  EXPECT_EQ(corpus.samples(3), 4);
  const std::span<const Symbol> window = corpus.Window(3, 3);
  EXPECT_EQ(std::vector<Symbol>(window.begin(), window.end()), (std::vector<Symbol>{0, 2, 0, 3}));
}

TEST_F(TextCorpusTest, ATextShorterThanTheContextHasNoSamples) {
  EXPECT_EQ(TextCorpus("abc").samples(3), 0);
  EXPECT_EQ(TextCorpus("abc").samples(9), 0);
  EXPECT_EQ(TextCorpus("abc").samples(2), 1);
}

TEST_F(TextCorpusTest, FilesAreReadOneBehindAnother) {
  const auto corpus = TextCorpus::Load({Write("one", "ab"), Write("two", "ba\n")});
  ASSERT_TRUE(corpus.ok()) << corpus.status().ToString();
  EXPECT_EQ(corpus->size(), 5);
  EXPECT_EQ(corpus->vocabulary(), 3);
}

TEST_F(TextCorpusTest, AMissingFileIsNamed) {
  const auto corpus = TextCorpus::Load({Write("one", "ab"), directory_ + "/absent"});
  ASSERT_FALSE(corpus.ok());
  EXPECT_EQ(corpus.status().code(), muster::Code::kNotFound);
  EXPECT_NE(corpus.status().message().find("/absent"), std::string::npos);
}

TEST_F(TextCorpusTest, DirectoriesAndEmptyTextsAreRefused) {
  EXPECT_EQ(TextCorpus::Load({directory_}).status().code(), muster::Code::kInvalidArgument);
  EXPECT_EQ(TextCorpus::Load({Write("empty", "")}).status().code(), muster::Code::kInvalidArgument);
}

TEST_F(TextCorpusTest, TheLicenceTextsAreSortedAndWithoutDoubles) {
  const auto files = TextCorpus::LicenceFiles();
  if (!std::filesystem::exists("/usr/share/common-licenses")) {
    EXPECT_EQ(files.status().code(), muster::Code::kNotFound);
    return;
  }
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  EXPECT_TRUE(std::is_sorted(files->begin(), files->end()));
  for (const std::string& file : *files) EXPECT_FALSE(std::filesystem::is_symlink(file)) << file;
}

}  // namespace
}  // namespace char_lm
