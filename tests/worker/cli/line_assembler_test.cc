#include "worker/cli/line_assembler.h"

#include <gtest/gtest.h>

namespace muster::cli {
namespace {

TEST(LineAssemblerTest, MarksEachLine) {
  LineAssembler lines("[a] ");
  std::string out;
  lines.Feed("one\ntwo\n\nthree\n", &out);
  EXPECT_EQ(out, "[a] one\n[a] two\n[a] \n[a] three\n");
}

TEST(LineAssemblerTest, HoldsAPartialLineUntilItsEnd) {
  LineAssembler lines("[a] ");
  std::string out;
  lines.Feed("one", &out);
  lines.Feed("", &out);
  EXPECT_EQ(out, "");
  lines.Feed(" and a half\ntwo", &out);
  EXPECT_EQ(out, "[a] one and a half\n");
  lines.Finish(&out);
  EXPECT_EQ(out, "[a] one and a half\n[a] two\n");
  lines.Finish(&out);
  EXPECT_EQ(out, "[a] one and a half\n[a] two\n");
}

// The result does not depend on how the bytes arrive.
TEST(LineAssemblerTest, EveryWayToCutTheBytesGivesTheSameLines) {
  const std::string text = "ab\nabcdefghij\n\nabcdefgh\nabcdefghx";
  std::string whole;
  LineAssembler once("> ", 8);
  once.Feed(text, &whole);
  once.Finish(&whole);
  EXPECT_EQ(whole, "> ab\n> abcdefgh\n> ij\n> \n> abcdefgh\n> abcdefgh\n> x\n");
  for (std::size_t i = 0; i <= text.size(); ++i) {
    for (std::size_t j = i; j <= text.size(); ++j) {
      std::string out;
      LineAssembler parts("> ", 8);
      parts.Feed(text.substr(0, i), &out);
      parts.Feed(text.substr(i, j - i), &out);
      parts.Feed(text.substr(j), &out);
      parts.Finish(&out);
      EXPECT_EQ(out, whole) << i << " " << j;
    }
  }
}

TEST(LineAssemblerTest, ALineWithoutEndTakesBoundedMemory) {
  LineAssembler lines("> ");
  std::string out;
  const std::string chunk(10'000, 'x');
  for (int i = 0; i < 100; ++i) lines.Feed(chunk, &out);
  // All but the last piece has been passed on.
  EXPECT_GE(out.size(), 1'000'000 - kMaxLineBytes);
  EXPECT_EQ(out.substr(0, 3), "> x");
  EXPECT_EQ(out.find('\n'), 2 + kMaxLineBytes);
}

}  // namespace
}  // namespace muster::cli
