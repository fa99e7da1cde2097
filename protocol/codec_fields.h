// How the codec describes a struct: one function template `Fields(io, value)` for each, run with a
// Writer to encode and with a Reader to decode, so that the two cannot differ. Internal to the
// codec.
//
// A Reader stops at the first field that is wrong and says which: "hello.spec.tensors[3].dtype:
// must be …". The bounds given here are those beyond which a value makes no sense or could harm
// arithmetic; whether a value is wise is for others to judge (ValidateSpec).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "protocol/codec.h"
#include "protocol/codec_json.h"
#include "protocol/limits.h"
#include "protocol/records.h"
#include "protocol/status.h"

namespace muster::codec {

using Json = nlohmann::json;

// Greatest integer that every JSON reader keeps exactly; sums of two never overflow.
inline constexpr std::int64_t kMaxInteger = (std::int64_t{1} << 53U) - 1;
// Longer durations are written as this one, which sums and small multiples still fit into.
inline constexpr Duration kMaxDuration = Duration::Seconds(std::int64_t{30} * 365 * 24 * 3600);
inline constexpr std::size_t kMaxPathBytes = 4096;
inline constexpr std::size_t kMaxRollbacks = 65536;
// A rank may write several files.
inline constexpr std::size_t kMaxFiles = std::size_t{4} * kMaxWorldSize;
// A rank's boxes that no rule gives.
inline constexpr std::size_t kMaxListedBoxes = 4 * kMaxTensors;
// A stored record holds two memberships and a tensor list, each of which fits into a message; a
// manifest, tensors and files of checkpoints that are larger than any that a coordinator knows.
inline constexpr std::size_t kMaxRecordBytes = 100'000'000;
inline constexpr double kMaxMillis = 1e12;

// A parameter that is written by a Reader and only looked at by a Writer.
template <class Io, class T>
using Ref = std::conditional_t<Io::kReads, T&, const T&>;

// Enums by their lower-case names.
template <class E>
inline constexpr E kLast{};
template <>
inline constexpr Code kLast<Code> = Code::kInternal;
template <>
inline constexpr DType kLast<DType> = DType::kComplex64;
template <>
inline constexpr Cause kLast<Cause> = Cause::kCoordinatorRestart;
template <>
inline constexpr Outcome kLast<Outcome> = Outcome::kVoid;
template <>
inline constexpr Stage kLast<Stage> = Stage::kForming;
template <>
inline constexpr RestoreSource kLast<RestoreSource> = RestoreSource::kCheckpoint;
template <>
inline constexpr CheckpointState kLast<CheckpointState> = CheckpointState::kDeleting;
template <>
inline constexpr EndKind kLast<EndKind> = EndKind::kFailed;
template <>
inline constexpr Backend kLast<Backend> = Backend::kNccl;

template <class E>
[[nodiscard]] std::string_view EnumName(E value) {
  if constexpr (std::is_same_v<E, Code>) {
    return CodeName(value);
  } else if constexpr (std::is_same_v<E, DType>) {
    return DTypeName(value);
  } else {
    return NameOf(value);
  }
}

class Writer {
 public:
  static constexpr bool kReads = false;
  // Fills `object`, which must outlive the Writer.
  explicit Writer(Json* object) : object_(*object) {}

  template <std::integral T>
  void Integer(const char* name, T value, std::int64_t /*lo*/, std::int64_t /*hi*/) {
    object_[name] = value;
  }
  template <class Tag>
  void Id(const char* name, StrongInt<Tag, std::int64_t> value) {
    object_[name] = value.value();
  }
  void RankFrom(const char* name, Rank value, std::int32_t /*lo*/) {
    object_[name] = value.value();
  }
  void Hex(const char* name, std::uint64_t value) { object_[name] = ToHex(value); }
  template <class Tag>
  void Hex(const char* name, StrongInt<Tag, std::uint64_t> value) {
    Hex(name, value.value());
  }
  void Bool(const char* name, bool value) { object_[name] = value; }
  // JSON has no NaN and no infinity: they are the strings "nan", "inf" and "-inf".
  void Number(const char* name, double value);
  void Millis(const char* name, double value) { object_[name] = value; }
  void Span(const char* name, Duration value, bool may_be_negative = false);
  void Prose(const char* name, const std::string& value, std::size_t max_bytes) {
    object_[name] = CutText(value, max_bytes);
  }
  void Text(const char* name, const std::string& value, std::size_t /*min_bytes*/,
            std::size_t /*max_bytes*/) {
    object_[name] = value;
  }
  void Address(const char* name, const std::string& value) { object_[name] = value; }
  template <class Tag>
  void Name(const char* name, const StrongString<Tag>& value, bool /*may_be_empty*/ = false) {
    object_[name] = value.value();
  }
  void Name(const char* name, const std::string& value) { object_[name] = value; }
  void PathPart(const char* name, const std::string& value, bool /*may_be_empty*/) {
    object_[name] = value;
  }
  template <class E>
  void Enum(const char* name, E value) {
    object_[name] = EnumName(value);
  }
  // One that not every writer knows; it is written all the same.
  template <class E>
  void OptionalEnum(const char* name, E value) {
    Enum(name, value);
  }
  // Two lower-case hexadecimal digits for each byte.
  void Bytes(const char* name, const std::string& value, std::size_t max_bytes);
  template <class T>
  void Object(const char* name, const T& value) {
    object_[name] = ObjectOf(value);
  }
  template <class T>
  void Optional(const char* name, const std::optional<T>& value) {
    if (value.has_value()) Object(name, *value);
  }
  template <class T>
  void List(const char* name, const std::vector<T>& values, std::size_t /*min*/,
            std::size_t /*max*/) {
    Json& list = object_[name] = Json::array();
    for (const T& value : values) list.push_back(ObjectOf(value));
  }
  void Integers(const char* name, const std::vector<std::int64_t>& values, std::size_t /*max*/) {
    object_[name] = values;
  }
  // Left out when it is empty.
  void OptionalText(const char* name, const std::string& value, std::size_t /*max_bytes*/) {
    if (!value.empty()) object_[name] = value;
  }
  // Left out when there are none; each as a list of tensor and bounds.
  void OptionalBoxes(const char* name, const std::vector<ListedBox>& boxes, std::size_t max);
  void Require(bool /*holds*/, const char* /*name*/, std::string_view /*why*/) {}

 private:
  template <class T>
  [[nodiscard]] static Json ObjectOf(const T& value) {
    Json object = Json::object();
    Writer writer(&object);
    Fields(writer, value);
    return object;
  }
  Json& object_;
};

class Reader {
 public:
  static constexpr bool kReads = true;
  // Reads `object` (any JSON value: one that is no object fails), called `name` in reasons. The
  // first failure goes to `status`. All must outlive the Reader.
  Reader(const Json& object, std::string_view name, Status* status)
      : Reader(object, nullptr, name, -1, status) {}

  template <std::integral T>
  void Integer(const char* name, T& value, std::int64_t lo, std::int64_t hi) {
    if (const std::optional<std::int64_t> read = ReadInteger(name, lo, hi)) {
      value = static_cast<T>(*read);
    }
  }
  template <class Tag>
  void Id(const char* name, StrongInt<Tag, std::int64_t>& value) {
    std::int64_t raw = 0;
    Integer(name, raw, 0, kMaxInteger);
    value = StrongInt<Tag, std::int64_t>(raw);
  }
  void RankFrom(const char* name, Rank& value, std::int32_t lo);
  void Hex(const char* name, std::uint64_t& value);
  template <class Tag>
  void Hex(const char* name, StrongInt<Tag, std::uint64_t>& value) {
    std::uint64_t raw = 0;
    Hex(name, raw);
    value = StrongInt<Tag, std::uint64_t>(raw);
  }
  void Bool(const char* name, bool& value);
  void Number(const char* name, double& value);
  // Milliseconds that were measured: finite, from 0 to kMaxMillis.
  void Millis(const char* name, double& value);
  void Span(const char* name, Duration& value, bool may_be_negative = false);
  // Text for people, which its writer cuts to `max_bytes`.
  void Prose(const char* name, std::string& value, std::size_t max_bytes) {
    ReadText(name, value, 0, max_bytes);
  }
  // Text that means something, and is never cut. Control characters are refused.
  void Text(const char* name, std::string& value, std::size_t min_bytes, std::size_t max_bytes);
  // Printable ASCII without spaces; may be empty.
  void Address(const char* name, std::string& value);
  // Letters, digits and "._-:@+", beginning with a letter, a digit or '_': safe in URLs, keys,
  // logs and Prometheus labels.
  template <class Tag>
  void Name(const char* name, StrongString<Tag>& value, bool may_be_empty = false) {
    value = StrongString<Tag>(ReadWord(name, "._-:@+", may_be_empty));
  }
  // The same rule for a name that is held as a plain string.
  void Name(const char* name, std::string& value) { value = ReadWord(name, "._-:@+", false); }
  // One component of a path: letters, digits and "._-", so neither "/" nor "..".
  void PathPart(const char* name, std::string& value, bool may_be_empty) {
    value = ReadWord(name, "._-", may_be_empty);
  }
  template <class E>
  void Enum(const char* name, E& value) {
    const std::string* text = FindString(name);
    if (text == nullptr) return;
    std::string known;
    for (int i = 0; i <= static_cast<int>(kLast<E>); ++i) {
      value = static_cast<E>(i);
      if (EnumName(value) == *text) return;
      known.append(i == 0 ? "" : ", ").append(EnumName(value));
    }
    Fail(name, "is " + Quoted(*text) + ", must be one of " + known);
  }
  // The first one when it is absent.
  template <class E>
  void OptionalEnum(const char* name, E& value) {
    value = E();
    if (Has(name)) Enum(name, value);
  }
  // 1 to `max_bytes` of them.
  void Bytes(const char* name, std::string& value, std::size_t max_bytes);
  template <class T>
  void Object(const char* name, T& value) {
    if (const Json* object = Find(name)) {
      Reader reader(*object, this, name, -1, status_);
      if (status_->ok()) Fields(reader, value);
    }
  }
  template <class T>
  void Optional(const char* name, std::optional<T>& value) {
    value.reset();
    if (Has(name)) Object(name, value.emplace());
  }
  template <class T>
  void List(const char* name, std::vector<T>& values, std::size_t min, std::size_t max) {
    const Json* list = FindList(name, min, max);
    if (list == nullptr) return;
    values.clear();
    values.reserve(list->size());
    for (std::size_t i = 0; i < list->size() && status_->ok(); ++i) {
      Reader reader((*list)[i], this, name, static_cast<std::int64_t>(i), status_);
      if (status_->ok()) Fields(reader, values.emplace_back());
    }
  }
  // Each from 0 to kMaxInteger.
  void Integers(const char* name, std::vector<std::int64_t>& values, std::size_t max);
  void OptionalText(const char* name, std::string& value, std::size_t max_bytes) {
    value.clear();
    if (Has(name)) Text(name, value, 1, max_bytes);
  }
  void OptionalBoxes(const char* name, std::vector<ListedBox>& boxes, std::size_t max);
  // What one field alone cannot show.
  void Require(bool holds, const char* name, std::string_view why) {
    if (!holds) Fail(name, why);
  }

 private:
  Reader(const Json& object, const Reader* parent, std::string_view name, std::int64_t index,
         Status* status);
  void Fail(std::string_view name, std::string_view why);
  [[nodiscard]] std::string Path() const;
  [[nodiscard]] bool Has(const char* name) const;
  // These return null, or nothing, after a failure, be it their own or an earlier one.
  const Json* Find(const char* name);
  const std::string* FindString(const char* name);
  const Json* FindList(const char* name, std::size_t min, std::size_t max);
  std::optional<std::int64_t> AsInteger(const char* name, const Json& value, std::int64_t lo,
                                        std::int64_t hi);
  std::optional<std::int64_t> ReadInteger(const char* name, std::int64_t lo, std::int64_t hi);
  void ReadText(const char* name, std::string& value, std::size_t min_bytes, std::size_t max_bytes);
  std::string ReadWord(const char* name, std::string_view punctuation, bool may_be_empty);

  const Json& object_;
  const Reader* parent_;
  std::string_view name_;
  std::int64_t index_;  // in the parent's list `name_`; -1: no list
  Status* status_;
};

// The records, which messages contain; defined and instantiated in codec_records.cc.
template <class Io>
void Fields(Io& io, Ref<Io, TensorSpec> tensor);
template <class Io>
void Fields(Io& io, Ref<Io, JobSpec> spec);
template <class Io>
void Fields(Io& io, Ref<Io, Member> member);
template <class Io>
void Fields(Io& io, Ref<Io, Wishes> wishes);
template <class Io>
void Fields(Io& io, Ref<Io, GenerationRecord> record);
template <class Io>
void Fields(Io& io, Ref<Io, CheckpointKey> key);
template <class Io>
void Fields(Io& io, Ref<Io, FileRecord> file);
template <class Io>
void Fields(Io& io, Ref<Io, CheckpointRecord> record);
template <class Io>
void Fields(Io& io, Ref<Io, End> end);

// The messages without their envelope; defined in codec_messages.cc.
// The object with the message's fields.
[[nodiscard]] Json FieldsOf(const Message& message);
// The message of type `type` from its object; kNotFound when there is no such type.
[[nodiscard]] Result<Message> MessageOf(std::string_view type, const Json& object);

}  // namespace muster::codec
