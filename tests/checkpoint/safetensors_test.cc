#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <string>

#include "protocol/prng.h"

namespace muster::checkpoint {
namespace {

// A header as a file starts with it, from its JSON.
std::string Prefix(const std::string& json) {
  std::string prefix;
  for (int i = 0; i < 8; ++i) prefix += static_cast<char>(json.size() >> (8U * unsigned(i)));
  return prefix + json;
}

Result<SafetensorsHeader> Decode(const std::string& json, std::int64_t data_bytes) {
  const std::string prefix = Prefix(json);
  return DecodeSafetensors(prefix, std::ssize(prefix) + data_bytes);
}

SafetensorsHeader Example() {
  SafetensorsHeader header;
  header.metadata = {{"who", "\"me\""}};
  header.tensors = {{"a", DType::kFloat32, {2, 3}, 0, 24},
                    {"empty", DType::kI64, {0, 5}, 24, 24},
                    {"b[0:2]", DType::kBFloat16, {2}, 24, 28},
                    {"scalar", DType::kU8, {}, 28, 29}};
  return header;
}

TEST(Safetensors, BytesOfAFile) {
  const Result<std::string> prefix = EncodeSafetensors(Example(), 256);
  ASSERT_TRUE(prefix.ok()) << prefix.status().ToString();
  std::string golden(8, '\0');
  golden[0] = static_cast<char>(504 % 256);
  golden[1] = static_cast<char>(504 / 256);
  golden += R"({"__metadata__":{"who":"\"me\""},)"
            R"("a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
            R"("empty":{"dtype":"I64","shape":[0,5],"data_offsets":[24,24]},)"
            R"("b[0:2]":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]},)"
            R"("scalar":{"dtype":"U8","shape":[],"data_offsets":[28,29]}})";
  golden.resize(512, ' ');
  EXPECT_EQ(*prefix, golden);
}

TEST(Safetensors, ReadsWhatItWrites) {
  for (const std::int64_t alignment : {1, 8, 4096}) {
    const Result<std::string> prefix = EncodeSafetensors(Example(), alignment);
    ASSERT_TRUE(prefix.ok());
    EXPECT_EQ(std::ssize(*prefix) % alignment, 0);
    const auto header = DecodeSafetensors(*prefix, std::ssize(*prefix) + 29);
    ASSERT_TRUE(header.ok()) << header.status().ToString();
    SafetensorsHeader expected = Example();
    expected.data_start = std::ssize(*prefix);
    EXPECT_EQ(header->metadata, expected.metadata);
    EXPECT_EQ(header->data_start, expected.data_start);
    // Empty tensors may come in any order at one position, nothing else may.
    EXPECT_EQ(header->tensors, expected.tensors);
  }
}

TEST(Safetensors, RefusesToWriteNonsense) {
  SafetensorsHeader twice = Example();
  twice.tensors[1].name = "a";
  SafetensorsHeader reserved = Example();
  reserved.tensors[0].name = "__metadata__";
  SafetensorsHeader hole = Example();
  hole.tensors[3].begin += 1;
  hole.tensors[3].end += 1;
  SafetensorsHeader size = Example();
  size.tensors[3].end += 1;
  SafetensorsHeader no_utf8 = Example();
  no_utf8.tensors[0].name = "\xff";
  for (const SafetensorsHeader& header : {twice, reserved, hole, size, no_utf8}) {
    EXPECT_EQ(EncodeSafetensors(header, 8).status().code(), Code::kInvalidArgument);
  }
}

TEST(Safetensors, AcceptsForeignHeaders) {
  EXPECT_TRUE(Decode("{}", 0).ok());
  EXPECT_TRUE(Decode(R"({"a":{"shape":[2],"data_offsets":[0,2],"dtype":"I8"}}   )", 2).ok());
  EXPECT_TRUE(Decode(R"({"b":{"dtype":"I8","shape":[2],"data_offsets":[1,3]},)"
                     R"("a":{"dtype":"I8","shape":[1,1],"data_offsets":[0,1]}})",
                     3)
                  .ok());
}

struct BadHeader {
  const char* json;
  std::int64_t data_bytes;
};

TEST(Safetensors, RefusesBadHeaders) {
  const BadHeader bad[] = {
      {"", 0},
      {" {}", 0},
      {"[]", 0},
      {"{}x", 0},
      {"{}\n", 0},
      {"{", 0},
      {"{}", 1},  // bytes after the last tensor
      {R"({"a":1})", 0},
      {R"({"a":{"dtype":"F32","shape":[1]}})", 4},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})", 4},
      {R"({"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4},
      {R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", 4},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4},  // size and shape
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8},  // hole at the start
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3},  // cut short
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5},  // more than described
      {R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[1,0]}})", 0},   // backwards
      {R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,1]}})", 1},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0},
      {R"({"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0},
      {R"({"a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]},)"
       R"("b":{"dtype":"I8","shape":[2],"data_offsets":[1,3]}})",
       3},  // overlap
      {R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},)"
       R"("b":{"dtype":"I8","shape":[1],"data_offsets":[2,3]}})",
       3},  // hole
      {R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},)"
       R"("a":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}})",
       2},  // a name twice
      {R"({"a":{"dtype":"I8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1},
      {R"({"__metadata__":1})", 0},
      {R"({"__metadata__":{"a":1}})", 0},
      {R"({"__metadata__":{},"__metadata__":{}})", 0},
      {R"({"a":{"dtype":"I8","shape":[[1]],"data_offsets":[0,1]}})", 1},
      {"{\"\xff\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
  };
  for (const BadHeader& header : bad) {
    EXPECT_EQ(Decode(header.json, header.data_bytes).status().code(), Code::kDataLoss)
        << header.json;
  }
}

TEST(Safetensors, BoundsTheHeaderBeforeReadingIt) {
  std::string first = Prefix("{}").substr(0, 8);
  EXPECT_EQ(*DataStartOf(first, 10), 10);
  EXPECT_EQ(DataStartOf(first, 9).status().code(), Code::kDataLoss);
  EXPECT_EQ(DataStartOf(first.substr(0, 7), 10).status().code(), Code::kDataLoss);
  EXPECT_EQ(DataStartOf("", 0).status().code(), Code::kDataLoss);
  for (const char last : {'\x01', '\x7f', '\x80', '\xff'}) {
    first[7] = last;
    EXPECT_EQ(DataStartOf(first, std::int64_t{1} << 62U).status().code(), Code::kDataLoss);
  }
  // A file whose header was never written starts with zeros.
  EXPECT_EQ(DataStartOf(std::string(8, '\0'), 8192).status().code(), Code::kDataLoss);
}

TEST(Safetensors, DeepNestingIsRefused) {
  EXPECT_EQ(Decode(std::string(1'000'000, '['), 0).status().code(), Code::kDataLoss);
  EXPECT_EQ(Decode("{\"a\":" + std::string(1'000'000, '[') + "}", 0).status().code(),
            Code::kDataLoss);
}

// L14: very many small tensors.
TEST(Safetensors, ManyTensors) {
  SafetensorsHeader header;
  for (std::int64_t i = 0; i < 30'000; ++i) {
    header.tensors.push_back({"t" + std::to_string(i), DType::kU8, {1}, i, i + 1});
  }
  const Result<std::string> prefix = EncodeSafetensors(header, 4096);
  ASSERT_TRUE(prefix.ok());
  const auto read = DecodeSafetensors(*prefix, std::ssize(*prefix) + 30'000);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->tensors, header.tensors);
}

// Whatever the bytes, the answer is a header that fits the file exactly, or kDataLoss.
TEST(Safetensors, SurvivesMutations) {
  const Result<std::string> encoded = EncodeSafetensors(Example(), 16);
  ASSERT_TRUE(encoded.ok());
  Prng prng(7);
  for (int round = 0; round < 20'000; ++round) {
    std::string prefix = *encoded;
    for (std::uint64_t edits = 1 + prng.Below(3); edits > 0; --edits) {
      const auto at = static_cast<std::size_t>(prng.Below(prefix.size()));
      switch (prng.Below(3)) {
        case 0: prefix[at] = static_cast<char>(prng.Next()); break;
        case 1: prefix.erase(at, 1 + prng.Below(4)); break;
        default: prefix.insert(at, 1, "{}[]\",:0129 "[prng.Below(12)]); break;
      }
      if (prefix.empty()) prefix = " ";
    }
    const std::int64_t file_bytes = std::ssize(prefix) + static_cast<std::int64_t>(prng.Below(64));
    const Result<SafetensorsHeader> header = DecodeSafetensors(prefix, file_bytes);
    if (header.ok()) {
      EXPECT_EQ(header->data_start + header->data_bytes(), file_bytes);
    } else {
      EXPECT_EQ(header.status().code(), Code::kDataLoss);
    }
  }
}

}  // namespace
}  // namespace muster::checkpoint
