// TrainingState: registration and its mistakes, element encoding, cuts.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "worker/client/state_table.h"
#include "worker/client/training_state.h"

namespace muster {
namespace {

using worker::EncodeElement;

TEST(TrainingState, AcceptsAllKindsOfTensors) {
  TrainingState state;
  std::vector<float> model(6);
  std::vector<double> statistics(3);
  std::int64_t count = 0;
  EXPECT_EQ(state.AddReplicated("model", model).data(), model.data());
  state.AddReplicated("statistics", std::span<double>(statistics));
  state.AddReplicated("count", DType::kI64, {}, std::as_writable_bytes(std::span(&count, 1)));
  const ShardedTensor weights = state.AddSharded("weights", DType::kFloat32, {6}, Cut::Even(0),
                                                 std::as_bytes(std::span(model)));
  const ShardedTensor moments =
      state.AddSharded("adam.m", DType::kBFloat16, {2, 3}, Cut::Even(1), Fill(0));
  std::vector<float> copy(6);
  state.AddDerived("weights.full", weights, std::span<float>(copy));
  EXPECT_TRUE(state.status().ok()) << state.status().ToString();
  EXPECT_EQ(weights.name(), "weights");
  EXPECT_TRUE(weights.data<float>().empty());  // before the first step
  EXPECT_TRUE(moments.data<float>().empty());  // and never as another type
  EXPECT_EQ(moments.box().count(), 0);
}

TEST(TrainingState, TheFirstMistakeIsKeptAndSaysWhatToDo) {
  std::vector<float> model(6);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(model));
  struct Row {
    const char* expected;
    void (*mistake)(TrainingState&, std::span<std::byte>);
  };
  const Row rows[] = {
      {"added twice",
       [](TrainingState& s, std::span<std::byte> b) {
         s.AddReplicated("a", DType::kFloat32, {6}, b);
         s.AddReplicated("a", DType::kFloat32, {6}, b);
       }},
      {"needs a name",
       [](TrainingState& s, std::span<std::byte> b) {
         s.AddReplicated("", DType::kFloat32, {6}, b);
       }},
      {"needs 28 bytes",
       [](TrainingState& s, std::span<std::byte> b) {
         s.AddReplicated("a", DType::kFloat32, {7}, b);
       }},
      {"negative extent",
       [](TrainingState& s, std::span<std::byte>) {
         s.AddSharded("a", DType::kFloat32, {-1}, Cut::Even(0), Fill(0));
       }},
      {"cannot be cut along dimension 1",
       [](TrainingState& s, std::span<std::byte>) {
         s.AddSharded("a", DType::kFloat32, {4}, Cut::Even(1), Fill(0));
       }},
      {"fill value 0.5",
       [](TrainingState& s, std::span<std::byte>) {
         s.AddSharded("a", DType::kI32, {4}, Cut::Even(0), Fill(0.5));
       }},
      {"along dimension 0",
       [](TrainingState& s, std::span<std::byte> b) {
         const ShardedTensor t = s.AddSharded("a", DType::kFloat32, {2, 3}, Cut::Even(1), Fill(0));
         s.AddDerived("b", t, b);
       }},
      {"not registered",
       [](TrainingState& s, std::span<std::byte> b) { s.AddDerived("b", ShardedTensor(), b); }},
      {"dimensions",
       [](TrainingState& s, std::span<std::byte> b) {
         s.AddReplicated("a", DType::kFloat32, Shape(17, 1), b.first(4));
       }},
  };
  for (const Row& row : rows) {
    TrainingState state;
    row.mistake(state, bytes);
    EXPECT_EQ(state.status().ok(), false) << row.expected;
    EXPECT_NE(state.status().message().find(row.expected), std::string::npos)
        << state.status().message();
  }
}

TEST(StateTable, NothingIsAddedOnceSealed) {
  worker::StateTable table;
  table.Seal();
  auto slot = std::make_shared<worker::TensorSlot>();
  slot->spec.name = "late";
  table.Add(slot);
  EXPECT_NE(table.status().message().find("before it"), std::string::npos);
}

std::uint64_t CodeOf(DType dtype, double value) {
  const auto bytes = EncodeElement(dtype, value);
  if (!bytes.ok()) return ~std::uint64_t{0};
  std::uint64_t code = 0;
  std::memcpy(&code, bytes->data(), bytes->size());
  return code;
}

TEST(EncodeElement, EveryDtype) {
  struct Row {
    DType dtype;
    double value;
    std::uint64_t code;
  };
  const double inf = std::numeric_limits<double>::infinity();
  const std::uint64_t refused = ~std::uint64_t{0};
  for (const Row& row : {
           Row{DType::kBool, 1, 1},
           Row{DType::kBool, 2, refused},
           Row{DType::kU8, 255, 255},
           Row{DType::kU8, 256, refused},
           Row{DType::kU8, -1, refused},
           Row{DType::kI8, -128, 0x80},
           Row{DType::kI16, -1, 0xffff},
           Row{DType::kI64, 9007199254740992.0, std::uint64_t{1} << 53},
           Row{DType::kI64, 9223372036854775808.0, refused},
           Row{DType::kU64, 9223372036854775808.0, std::uint64_t{1} << 63},
           Row{DType::kFloat32, 1, 0x3f800000},
           Row{DType::kFloat64, 1, 0x3ff0000000000000},
           Row{DType::kFloat16, 0, 0},
           Row{DType::kFloat16, -0.0, 0x8000},
           Row{DType::kFloat16, 1, 0x3c00},
           Row{DType::kFloat16, -2, 0xc000},
           Row{DType::kFloat16, 65504, 0x7bff},
           Row{DType::kFloat16, 65536, refused},
           Row{DType::kFloat16, std::ldexp(1, -24), 1},
           Row{DType::kFloat16, std::ldexp(1, -14), 0x400},
           Row{DType::kFloat16, 1 + std::ldexp(1, -11), 0x3c00},  // a tie goes to even
           Row{DType::kFloat16, 1 + 3 * std::ldexp(1, -11), 0x3c02},
           Row{DType::kFloat16, 1.9999, 0x4000},  // the carry runs into the exponent
           Row{DType::kFloat16, inf, 0x7c00},
           Row{DType::kBFloat16, 1, 0x3f80},
           Row{DType::kBFloat16, 0.1, 0x3dcd},
           Row{DType::kFloat8E4M3, 1, 0x38},
           Row{DType::kFloat8E4M3, 448, 0x7e},
           Row{DType::kFloat8E4M3, 480, refused},
           Row{DType::kFloat8E4M3, inf, refused},
           Row{DType::kFloat8E5M2, 1, 0x3c},
           Row{DType::kFloat8E5M2, 57344, 0x7b},
           Row{DType::kFloat8E5M2, inf, 0x7c},
       }) {
    EXPECT_EQ(CodeOf(row.dtype, row.value), row.code)
        << DTypeName(row.dtype) << " " << row.value << std::hex << " " << row.code;
  }
}

}  // namespace
}  // namespace muster
