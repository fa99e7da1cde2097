#include "checkpoint/format.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "checkpoint/digest.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "checkpoint/shard_header.h"
#include "tests/checkpoint/support.h"

namespace muster::checkpoint {
namespace {

TEST(Names, OfDirectories) {
  EXPECT_EQ(DirectoryName(Key(42, 7)), "s000000000042-g00000007");
  EXPECT_EQ(ParseDirectoryName("s000000000042-g00000007"), Key(42, 7));
  const CheckpointKey large = Key(std::numeric_limits<std::int64_t>::max(), 123456789);
  EXPECT_EQ(ParseDirectoryName(DirectoryName(large)), large);
  for (const char* name : {"", "s", "s1-g1", "s000000000042-g00000007x", "x000000000042-g00000007",
                           "s000000000042", "s0000000000042-g00000007", "s-00000000001-g00000001",
                           "s000000000042-g00000007/..", "s99999999999999999999-g00000001", ".."}) {
    EXPECT_FALSE(ParseDirectoryName(name).has_value()) << name;
  }
}

TEST(Names, OfFilesLeadNowhereElse) {
  EXPECT_EQ(ShardFileName(Rank(3), 0), "r00003.safetensors");
  EXPECT_EQ(ShardFileName(Rank(3), 1), "r00003-01.safetensors");
  EXPECT_TRUE(IsShardFileName("r00003-99.safetensors", Rank(3)));
  for (const char* name :
       {"", "r00004.safetensors", "../r00003.safetensors", "r00003-00.safetensors",
        "r00003-100.safetensors", "manifest.json", "/r00003.safetensors"}) {
    EXPECT_FALSE(IsShardFileName(name, Rank(3))) << name;
  }
}

TEST(Names, OfFilesAreReadBack) {
  for (const std::int32_t rank : {0, 7, 16383}) {
    for (const int attempt : {0, 1, 99}) {
      const auto parsed = ParseShardFileName(ShardFileName(Rank(rank), attempt));
      ASSERT_TRUE(parsed.has_value());
      EXPECT_EQ(parsed->rank, Rank(rank));
      EXPECT_EQ(parsed->attempt, attempt);
    }
  }
  for (const char* name : {"", "r", "r.", "r00003", "r3.safetensors", "r00003-00.safetensors",
                           "r00003-1.safetensors", "r99999.safetensors", "r-0003.safetensors",
                           "r00003.safetensors.tmp", "s000000000001-g00000001"}) {
    EXPECT_FALSE(ParseShardFileName(name).has_value()) << name;
  }
}

TEST(Names, OfPaths) {
  EXPECT_EQ(ParentOf("/a/b"), "/a");
  EXPECT_EQ(ParentOf("/a/b//"), "/a");
  EXPECT_EQ(ParentOf("/a"), "/");
  EXPECT_EQ(ParentOf("a"), ".");
  EXPECT_EQ(BaseNameOf("/a/b"), "b");
  EXPECT_EQ(BaseNameOf("/a/b/"), "b");
  EXPECT_EQ(BaseNameOf("a"), "a");
  EXPECT_EQ(BaseNameOf("/"), "");
}

TEST(Names, OfParts) {
  const TensorSpec tensor{"w", DType::kFloat32, {4, 2}, 0};
  EXPECT_EQ(StoredName(tensor, Box{{{0, 4}, {0, 2}}}), "w");
  EXPECT_EQ(StoredName(tensor, Box{{{1, 4}, {0, 2}}}), "w[1:4,0:2]");
  EXPECT_EQ(StoredName({"s", DType::kI64, {}, -1}, Box{}), "s");
}

// By the rule, the parts of all ranks are every tensor exactly once, in aligned places.
TEST(Layout, TilesEveryTensor) {
  const std::vector<TensorSpec> tensors = VariedTensors();
  for (std::int32_t world_size = 1; world_size <= 20; ++world_size) {
    std::vector<std::vector<Box>> boxes(tensors.size());
    for (std::int32_t r = 0; r < world_size; ++r) {
      const auto layout = LayoutOf(tensors, Rank(r), world_size, {});
      ASSERT_TRUE(layout.ok());
      std::int64_t position = 0;
      for (const StoredTensor& tensor : *layout) {
        EXPECT_EQ(tensor.begin, position);
        EXPECT_EQ(tensor.begin % SizeOf(tensor.spec.dtype), 0);
        position = tensor.end;
        boxes[tensor.index].push_back(tensor.box);
      }
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Status tiles = TilesExactly(tensors[i].shape, boxes[i]);
      EXPECT_TRUE(tiles.ok()) << tensors[i].name << ": " << tiles.ToString();
      EXPECT_FALSE(boxes[i].empty()) << tensors[i].name << " is in no file";
    }
  }
}

TEST(Tensors, ThatCannotBeStored) {
  EXPECT_TRUE(CheckTensors(VariedTensors()).ok());
  const std::vector<std::vector<TensorSpec>> bad = {
      {{"", DType::kU8, {1}, -1}},
      {{"__metadata__", DType::kU8, {1}, -1}},
      {{"a", DType::kU8, {1}, -1}, {"a", DType::kI8, {1}, -1}},
      {{"a", DType::kU8, {-1}, -1}},
      {{"a", DType::kU8, {1}, 1}},
      {{"a", DType::kU8, {1}, -4}},
      {{"a", DType::kU8, {}, 0}},
      {{"a", DType::kU8, {std::int64_t{1} << 32U, std::int64_t{1} << 32U}, -1}},
      {{"a", DType::kFloat64, {std::int64_t{1} << 60U}, -1}},
  };
  for (const auto& tensors : bad) {
    EXPECT_EQ(CheckTensors(tensors).code(), Code::kInvalidArgument)
        << tensors[0].name << Box::Whole(tensors[0].shape).ToString();
  }
}

CheckpointRecord ExampleRecord() {
  const State state{VariedTensors(), {}};
  return RecordOf(state, Key(12, 3),
                  {{"r00000.safetensors", 5000, 0x0123456789abcdef, Rank(0)},
                   {"r00001-02.safetensors", 6000, 0xfedcba9876543210, Rank(1)}});
}

TEST(Record, IsCheckedAsAWhole) {
  EXPECT_TRUE(CheckRecord(ExampleRecord()).ok());
  std::vector<CheckpointRecord> bad(11, ExampleRecord());
  bad[0].directory = "s000000000012-g00000004";
  bad[1].directory = "../x";
  bad[2].key.step = Step(13);  // S09: a directory of another step
  bad[3].world_size = 3;       // S08: a rank without a file
  bad[4].files.pop_back();
  bad[5].files[1].rank = Rank(0);
  bad[6].files[1].name = "r00000.safetensors";
  bad[7].files[1].name = "../../etc/passwd";
  bad[8].bytes += 1;
  bad[9].files[0].bytes = -1;
  bad[10].tensors.push_back(bad[10].tensors[0]);
  for (const CheckpointRecord& record : bad) {
    EXPECT_EQ(CheckRecord(record).code(), Code::kInvalidArgument) << record.directory;
    EXPECT_EQ(EncodeManifest(record).status().code(), Code::kInvalidArgument);
  }
}

TEST(Manifest, ReadsWhatItWrites) {
  const Result<std::string> text = EncodeManifest(ExampleRecord());
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  const Result<Manifest> manifest = DecodeManifest(*text);
  ASSERT_TRUE(manifest.ok()) << manifest.status().ToString();
  EXPECT_EQ(manifest->record, ExampleRecord());
  EXPECT_EQ(*EncodeManifest(manifest->record), *text);
  EXPECT_NE(text->find(ToHex(manifest->digest)), std::string::npos);
}

// L11: any changed byte and any missing or added one is noticed.
TEST(Manifest, NoticesAnyDamage) {
  const Result<std::string> text = EncodeManifest(ExampleRecord());
  ASSERT_TRUE(text.ok());
  for (std::size_t i = 0; i < text->size(); ++i) {
    for (const int flip : {0x01, 0x20, 0x80}) {
      std::string damaged = *text;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      EXPECT_FALSE(DecodeManifest(damaged).ok()) << "byte " << i;
    }
    EXPECT_EQ(DecodeManifest(text->substr(0, i)).status().code(), Code::kDataLoss);
  }
  EXPECT_FALSE(DecodeManifest(*text + "\n").ok());
}

TEST(Manifest, OfAnotherFormatIsSaidToBe) {
  std::string text = R"({"muster_manifest":3,"checkpoint":{},"digest":")";
  text += ToHex(DigestOf(text));
  text += "\"}\n";
  EXPECT_EQ(DecodeManifest(text).status().code(), Code::kFailedPrecondition);
}

ShardHeader ExampleHeader() {
  ShardHeader header{"job", Key(5, 2), Lineage(9), Rank(1), 3, {}, {}, {}};
  header.tensors = *LayoutOf(VariedTensors(), Rank(1), 3, {});
  header.block_digests.resize(BlocksOf(header.tensors).size(), 0x1122334455667788);
  return header;
}

TEST(ShardHeader, ReadsWhatItWrites) {
  const ShardHeader header = ExampleHeader();
  const Result<std::string> prefix = EncodeShardHeader(header);
  ASSERT_TRUE(prefix.ok()) << prefix.status().ToString();
  EXPECT_EQ(std::ssize(*prefix) % kDataAlignment, 0);
  const auto read = DecodeShardHeader(*prefix, std::ssize(*prefix) + header.data_bytes());
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(*read, header);
}

TEST(ShardHeader, RefusesWhatContradictsItself) {
  const auto decode = [](const ShardHeader& header) {
    const Result<std::string> prefix = EncodeShardHeader(header);
    EXPECT_TRUE(prefix.ok()) << prefix.status().ToString();
    return DecodeShardHeader(*prefix, std::ssize(*prefix) + header.data_bytes()).status().code();
  };
  ShardHeader digests = ExampleHeader();
  digests.block_digests.push_back(1);
  EXPECT_EQ(decode(digests), Code::kDataLoss);
  ShardHeader name = ExampleHeader();
  name.tensors[0].name += "x";
  EXPECT_EQ(decode(name), Code::kDataLoss);
  ShardHeader outside = ExampleHeader();
  outside.tensors[0].spec.shape[0] = 0;
  EXPECT_EQ(decode(outside), Code::kDataLoss);
  EXPECT_EQ(DecodeShardHeader(std::string("\x02\0\0\0\0\0\0\0{}", 10), 10).status().code(),
            Code::kDataLoss);
}

TEST(ShardHeader, RefusesNamesThatCollide) {
  // The first half of "a" is stored as "a[0:1]", which is also the name of the other tensor.
  ShardHeader header = ExampleHeader();
  header.tensors =
      *LayoutOf({{"a", DType::kU8, {2}, 0}, {"a[0:1]", DType::kU8, {1}, -1}}, Rank(0), 2, {});
  EXPECT_EQ(EncodeShardHeader(header).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace muster::checkpoint
