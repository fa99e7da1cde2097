#include "protocol/codec_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace muster::codec {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; }

bool IsLetterOrDigit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

}  // namespace

void Writer::Number(const char* name, double value) {
  if (std::isnan(value)) {
    object_[name] = "nan";
  } else if (std::isinf(value)) {
    object_[name] = value > 0 ? "inf" : "-inf";
  } else {
    object_[name] = value;
  }
}

void Writer::Bytes(const char* name, const std::string& value, std::size_t /*max_bytes*/) {
  std::string digits;
  digits.reserve(2 * value.size());
  for (const char byte : value) {
    const auto number = static_cast<unsigned char>(byte);
    digits.push_back(kDigits[number >> 4U]);
    digits.push_back(kDigits[number & 15U]);
  }
  object_[name] = std::move(digits);
}

void Reader::Bytes(const char* name, std::string& value, std::size_t max_bytes) {
  const std::string* text = FindString(name);
  if (text == nullptr) return;
  const std::size_t bytes = text->size() / 2;
  if (text->size() % 2 != 0 || text->find_first_not_of(kDigits) != std::string::npos) {
    return Fail(name, fmt::format("is {}, must be lower-case hexadecimal digits, two for each byte",
                                  Quoted(*text)));
  }
  if (bytes == 0 || bytes > max_bytes) {
    return Fail(name, fmt::format("is {} bytes, must be 1 to {}", bytes, max_bytes));
  }
  value.resize(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    const std::size_t high = kDigits.find((*text)[2 * i]);
    value[i] = static_cast<char>(high * 16 + kDigits.find((*text)[2 * i + 1]));
  }
}

void Writer::Span(const char* name, Duration value, bool may_be_negative) {
  const Duration least = may_be_negative ? kMaxDuration * -1 : Duration();
  object_[name] = std::clamp(value, least, kMaxDuration).nanos();
}

Reader::Reader(const Json& object, const Reader* parent, std::string_view name, std::int64_t index,
               Status* status)
    : object_(object), parent_(parent), name_(name), index_(index), status_(status) {
  if (!object.is_object() && status_->ok()) {
    *status_ =
        InvalidArgument(fmt::format("{}: is {}, must be an object", Path(), object.type_name()));
  }
}

std::string Reader::Path() const {
  std::string path = parent_ == nullptr ? std::string() : parent_->Path() + ".";
  path.append(name_);
  return index_ < 0 ? path : fmt::format("{}[{}]", path, index_);
}

void Reader::Fail(std::string_view name, std::string_view why) {
  if (status_->ok()) *status_ = InvalidArgument(fmt::format("{}.{}: {}", Path(), name, why));
}

bool Reader::Has(const char* name) const { return status_->ok() && object_.contains(name); }

const Json* Reader::Find(const char* name) {
  if (!status_->ok()) return nullptr;
  const auto it = object_.find(name);
  if (it != object_.end()) return &*it;
  Fail(name, "is missing");
  return nullptr;
}

const std::string* Reader::FindString(const char* name) {
  const Json* value = Find(name);
  if (value == nullptr) return nullptr;
  if (value->is_string()) return value->get_ptr<const std::string*>();
  Fail(name, fmt::format("is {}, must be a string", value->type_name()));
  return nullptr;
}

const Json* Reader::FindList(const char* name, std::size_t min, std::size_t max) {
  const Json* value = Find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) {
    Fail(name, fmt::format("is {}, must be an array", value->type_name()));
    return nullptr;
  }
  if (value->size() < min || value->size() > max) {
    Fail(name, fmt::format("has {} items, must have {} to {}", value->size(), min, max));
    return nullptr;
  }
  return value;
}

std::optional<std::int64_t> Reader::AsInteger(const char* name, const Json& value, std::int64_t lo,
                                              std::int64_t hi) {
  if (!value.is_number_integer()) {
    Fail(name, fmt::format("is {}, must be an integer",
                           value.is_number() ? "a fraction or too large" : value.type_name()));
    return std::nullopt;
  }
  // Unsigned ones from 2^63 on would turn negative.
  const bool huge = value.is_number_unsigned() && (value.get<std::uint64_t>() >> 63U) != 0;
  const std::int64_t number = huge ? 0 : value.get<std::int64_t>();
  if (huge || number < lo || number > hi) {
    Fail(name, fmt::format("is {}, must be from {} to {}", value.dump(), lo, hi));
    return std::nullopt;
  }
  return number;
}

std::optional<std::int64_t> Reader::ReadInteger(const char* name, std::int64_t lo,
                                                std::int64_t hi) {
  const Json* value = Find(name);
  return value == nullptr ? std::nullopt : AsInteger(name, *value, lo, hi);
}

void Reader::RankFrom(const char* name, Rank& value, std::int32_t lo) {
  std::int32_t raw = 0;
  Integer(name, raw, lo, kMaxWorldSize - 1);
  value = Rank(raw);
}

void Reader::Hex(const char* name, std::uint64_t& value) {
  const std::string* text = FindString(name);
  if (text != nullptr && !FromHex(*text, &value)) {
    Fail(name, fmt::format("is {}, must be 16 lower-case hexadecimal digits", Quoted(*text)));
  }
}

void Reader::Bool(const char* name, bool& value) {
  const Json* found = Find(name);
  if (found == nullptr) return;
  if (!found->is_boolean()) {
    Fail(name, fmt::format("is {}, must be true or false", found->type_name()));
    return;
  }
  value = found->get<bool>();
}

void Reader::Number(const char* name, double& value) {
  const Json* found = Find(name);
  if (found == nullptr) return;
  if (found->is_number()) {
    value = found->get<double>();
    return;
  }
  const std::string* text = found->get_ptr<const std::string*>();
  if (text != nullptr && *text == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (text != nullptr && (*text == "inf" || *text == "-inf")) {
    value = *text == "inf" ? kInfinity : -kInfinity;
  } else {
    Fail(name, fmt::format("is {}, must be a number, \"nan\", \"inf\" or \"-inf\"",
                           text == nullptr ? found->type_name() : Quoted(*text)));
  }
}

void Reader::Millis(const char* name, double& value) {
  const Json* found = Find(name);
  if (found == nullptr) return;
  const double number = found->is_number() ? found->get<double>() : -1;
  if (!(number >= 0 && number <= kMaxMillis)) {
    Fail(name, fmt::format("is {}, must be a number of milliseconds from 0 to {}",
                           found->is_number() ? found->dump() : found->type_name(), kMaxMillis));
    return;
  }
  value = number;
}

void Reader::Span(const char* name, Duration& value, bool may_be_negative) {
  std::int64_t nanos = 0;
  Integer(name, nanos, may_be_negative ? -kMaxDuration.nanos() : 0, kMaxDuration.nanos());
  value = Duration::Nanos(nanos);
}

void Reader::ReadText(const char* name, std::string& value, std::size_t min_bytes,
                      std::size_t max_bytes) {
  const std::string* text = FindString(name);
  if (text == nullptr) return;
  if (text->size() < min_bytes || text->size() > max_bytes) {
    Fail(name,
         fmt::format("is {} bytes long, must be {} to {}", text->size(), min_bytes, max_bytes));
    return;
  }
  value = *text;
}

void Reader::Text(const char* name, std::string& value, std::size_t min_bytes,
                  std::size_t max_bytes) {
  ReadText(name, value, min_bytes, max_bytes);
  if (std::any_of(value.begin(), value.end(), IsControl)) {
    Fail(name, fmt::format("is {}, must not hold control characters", Quoted(value)));
  }
}

void Reader::Address(const char* name, std::string& value) {
  Text(name, value, 0, kMaxAddressBytes);
  if (std::any_of(value.begin(), value.end(), [](char c) { return c <= ' ' || c > '~'; })) {
    Fail(name, fmt::format("is {}, must be printable ASCII without spaces", Quoted(value)));
  }
}

std::string Reader::ReadWord(const char* name, std::string_view punctuation, bool may_be_empty) {
  std::string value;
  Text(name, value, may_be_empty ? 0 : 1, kMaxNameBytes);
  const bool plain = std::all_of(value.begin(), value.end(), [&](char c) {
    return IsLetterOrDigit(c) || punctuation.find(c) != std::string_view::npos;
  });
  const bool begins = value.empty() || IsLetterOrDigit(value.front()) || value.front() == '_';
  if (!plain || !begins) {
    Fail(name, fmt::format("is {}, must consist of letters, digits and {} and begin with a letter, "
                           "a digit or _",
                           Quoted(value), punctuation));
  }
  return value;
}

void Reader::Integers(const char* name, std::vector<std::int64_t>& values, std::size_t max) {
  const Json* list = FindList(name, 0, max);
  if (list == nullptr) return;
  values.clear();
  for (const Json& item : *list) {
    const std::optional<std::int64_t> number = AsInteger(name, item, 0, kMaxInteger);
    if (!number.has_value()) return;
    values.push_back(*number);
  }
}

void Writer::OptionalBoxes(const char* name, const std::vector<ListedBox>& boxes,
                           std::size_t /*max*/) {
  if (boxes.empty()) return;
  Json& list = object_[name] = Json::array();
  for (const ListedBox& listed : boxes) {
    Json& item = list.emplace_back(Json::array({listed.tensor}));
    for (const Range& range : listed.box.ranges) {
      item.push_back(range.lo);
      item.push_back(range.hi);
    }
  }
}

void Reader::OptionalBoxes(const char* name, std::vector<ListedBox>& boxes, std::size_t max) {
  boxes.clear();
  if (!Has(name)) return;
  const Json* list = FindList(name, 1, max);
  if (list == nullptr) return;
  for (const Json& item : *list) {
    std::vector<std::int64_t> numbers;
    for (const Json& number : item) {
      const std::optional<std::int64_t> value = AsInteger(name, number, 0, kMaxInteger);
      if (!value.has_value()) return;
      numbers.push_back(*value);
    }
    if (!item.is_array() || numbers.size() % 2 == 0 || numbers.size() > 2 * kMaxDimensions + 1) {
      return Fail(name, "holds something that is not a tensor with pairs of bounds");
    }
    ListedBox& listed = boxes.emplace_back();
    listed.tensor = numbers[0];
    for (std::size_t i = 1; i < numbers.size(); i += 2) {
      listed.box.ranges.push_back({numbers[i], numbers[i + 1]});
    }
  }
}

}  // namespace muster::codec
