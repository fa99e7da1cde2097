// The state of one process: a replicated tensor, one cut along each dimension, one cut flat and
// tied to another name, and a derived one; on the host, on a device of its own, or on both.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <ostream>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/host_device.h"
#include "worker/client/device_state.h"
#include "worker/client/state_table.h"

namespace muster::worker {

// Where the tensors lie, and whether the communicator takes what lies on the device.
struct NodeLayout {
  std::string name;
  std::set<std::string> on_device;
  bool straight = false;
  friend void PrintTo(const NodeLayout& layout, std::ostream* out) { *out << layout.name; }
};

inline const NodeLayout kOnHost = {"Host", {}};
inline const std::set<std::string> kAllTensors = {"model", "weights", "columns", "flat", "full"};

class Node {
 public:
  static constexpr std::int64_t kRows = 7;
  static constexpr std::int64_t kColumns = 5;
  static constexpr std::size_t kModel = 10;

  explicit Node(NodeLayout layout = kOnHost, const char* model = "model")
      : layout_(std::move(layout)), initial_(kRows * kColumns) {
    if (!layout_.on_device.empty()) {
      testing::HostDevice::Options options;
      options.guarded = true;
      device_ = testing::HostDevice::Make(options);
      stream_ = device_->MakeStream().value();
      // Copies of the tensors take several pieces of staging.
      table_.UseDevice(DeviceState::Make(device_, *stream_, 24).value());
    }
    for (std::size_t i = 0; i < initial_.size(); ++i) initial_[i] = static_cast<float>(i);
    model_ = Add(TensorKind::kReplicated, "model", {kModel}, -1);
    model_->spec.name = model;
    GiveMemory(*model_, kModel);
    SetModel(std::vector<float>(kModel));
    weights_ = Add(TensorKind::kSharded, "weights", {kRows, kColumns}, 0);
    weights_->initial = std::as_bytes(std::span(initial_));
    columns_ = Add(TensorKind::kSharded, "columns", {kRows, kColumns}, 1);
    columns_->fill = *EncodeElement(DType::kFloat32, 2);
    flat_ = Add(TensorKind::kSharded, "flat", {kRows, kColumns}, kFlat);
    flat_->initial = weights_->initial;
    Add(TensorKind::kAlias, "tied", {kRows, kColumns}, kFlat)->spec.alias_of = "flat";
    full_ = Add(TensorKind::kDerived, "full", {kRows, kColumns}, -1);
    full_->from = weights_;
    GiveMemory(*full_, initial_.size());
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  [[nodiscard]] StateTable& table() { return table_; }
  [[nodiscard]] bool straight() const { return layout_.straight; }
  // Null on the host.
  [[nodiscard]] const std::shared_ptr<testing::HostDevice>& device() const { return device_; }
  // The user's.
  [[nodiscard]] DeviceStream& stream() { return *stream_; }
  // Lets the user's work run.
  void Finish() {
    if (!stream_) return;
    EXPECT_EQ(stream_->Wait(Duration::Seconds(60), nullptr), Status());
  }

  [[nodiscard]] std::vector<float> model() { return Read(*model_, model_->memory); }
  void SetModel(std::vector<float> values) { Write(*model_, model_->memory, std::move(values)); }
  [[nodiscard]] std::vector<float> full() { return Read(*full_, full_->memory); }
  void SetFull(std::vector<float> values) { Write(*full_, full_->memory, std::move(values)); }

  // Each element becomes a function of its place and of `salt`; on a device when the work runs.
  void Scribble(float salt) {
    std::vector<float> model(kModel);
    for (std::size_t i = 0; i < kModel; ++i) model[i] = salt + static_cast<float>(i);
    SetModel(std::move(model));
    for (TensorSlot* slot : Sharded()) {
      std::vector<float> elements;
      ForEach(*slot, [&](std::int64_t p) { elements.push_back(salt + static_cast<float>(p)); });
      Write(*slot, slot->held.span(), std::move(elements));
    }
  }
  void ExpectScribbled(float salt) {
    const std::vector<float> model = this->model();
    for (std::size_t i = 0; i < kModel; ++i) ASSERT_EQ(model[i], salt + static_cast<float>(i));
    for (TensorSlot* slot : Sharded()) {
      ExpectElements(*slot, [&](std::int64_t place) { return salt + static_cast<float>(place); });
    }
  }
  void ExpectInitial() {
    for (const float value : model()) ASSERT_EQ(value, 1);
    for (TensorSlot* slot : {weights_.get(), flat_.get()}) {
      ExpectElements(*slot, [](std::int64_t place) { return static_cast<float>(place); });
    }
    ExpectElements(*columns_, [](std::int64_t) { return 2.F; });
  }

 private:
  std::vector<TensorSlot*> Sharded() { return {weights_.get(), columns_.get(), flat_.get()}; }
  std::shared_ptr<TensorSlot> Add(TensorKind kind, const char* name, Shape shape, int cut) {
    auto slot = std::make_shared<TensorSlot>();
    slot->kind = kind;
    slot->spec = {name, DType::kFloat32, std::move(shape), cut};
    slot->where = layout_.on_device.contains(name) ? MemoryKind::kDevice : MemoryKind::kHost;
    table_.Add(slot);
    return slot;
  }
  void GiveMemory(TensorSlot& slot, std::size_t elements) {
    if (slot.where == MemoryKind::kDevice) {
      const DeviceMemory& memory =
          device_memory_.emplace_back(device_->Allocate(elements * sizeof(float)).value());
      slot.memory = {memory.data(), memory.size()};
    } else {
      slot.memory = std::as_writable_bytes(std::span(host_memory_.emplace_back(elements)));
    }
  }
  std::vector<float> Read(const TensorSlot& slot, std::span<std::byte> bytes) {
    std::vector<float> values(bytes.size() / sizeof(float));
    if (slot.where == MemoryKind::kHost) {
      std::ranges::copy(bytes, std::as_writable_bytes(std::span(values)).begin());
    } else {
      stream_->Copy(values.data(), bytes.data(), bytes.size());
      Finish();
    }
    return values;
  }
  void Write(const TensorSlot& slot, std::span<std::byte> bytes, std::vector<float> values) {
    ASSERT_EQ(values.size() * sizeof(float), bytes.size());
    if (slot.where == MemoryKind::kHost) {
      std::ranges::copy(std::as_bytes(std::span(values)), bytes.begin());
    } else {
      // Read when the work runs.
      stream_->Copy(bytes.data(), written_.emplace_back(std::move(values)).data(), bytes.size());
    }
  }
  void ForEach(const TensorSlot& slot, const std::function<void(std::int64_t)>& visit) {
    for (const Box& box : slot.boxes) {
      for (std::int64_t row = box.ranges[0].lo; row < box.ranges[0].hi; ++row) {
        for (std::int64_t column = box.ranges[1].lo; column < box.ranges[1].hi; ++column) {
          visit(row * kColumns + column);
        }
      }
    }
  }
  void ExpectElements(const TensorSlot& slot, const std::function<float(std::int64_t)>& expected) {
    const std::vector<float> elements = Read(slot, slot.held.span());
    std::size_t at = 0;
    ForEach(slot, [&](std::int64_t place) {
      ASSERT_LT(at, elements.size());
      ASSERT_EQ(elements[at++], expected(place)) << slot.spec.name << " " << place;
    });
    ASSERT_EQ(at, elements.size());
  }

  const NodeLayout layout_;
  std::shared_ptr<testing::HostDevice> device_;
  std::deque<DeviceMemory> device_memory_;
  std::deque<std::vector<float>> host_memory_;
  std::deque<std::vector<float>> written_;
  std::unique_ptr<DeviceStream> stream_;  // runs what is left of its work at its end
  StateTable table_;
  std::vector<float> initial_;
  std::shared_ptr<TensorSlot> model_, weights_, columns_, flat_, full_;
};

}  // namespace muster::worker
