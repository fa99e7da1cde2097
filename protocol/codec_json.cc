#include "protocol/codec_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace muster::codec {
namespace {

using nlohmann::json;

// Builds the value from the parser's events; returning false from one of them ends the parsing.
// The names of the functions are the library's.
class BoundedBuilder : public nlohmann::json_sax<json> {
 public:
  explicit BoundedBuilder(std::size_t max_depth) : max_depth_(max_depth) {}

  bool null() override { return Add(json()); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return Refuse("binary values are no JSON"); }
  bool start_object(std::size_t /*size*/) override { return Open(json::object()); }
  bool start_array(std::size_t /*size*/) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    if (open_.back()->contains(name)) return Refuse(fmt::format("key {} twice", Quoted(name)));
    key_ = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const json::exception& /*error*/) override {
    return Refuse(fmt::format("not JSON at byte {}", position));
  }

  [[nodiscard]] const std::string& error() const { return error_; }
  [[nodiscard]] json Take() { return std::move(root_); }

 private:
  // The address of an open container stays valid: only the innermost one grows.
  json* Place(json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }
  bool Add(json value) {
    Place(std::move(value));
    return true;
  }
  bool Open(json container) {
    if (open_.size() == max_depth_) {
      return Refuse(fmt::format("nested deeper than {} levels", max_depth_));
    }
    open_.push_back(Place(std::move(container)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }
  bool Refuse(std::string why) {
    error_ = std::move(why);
    return false;
  }

  const std::size_t max_depth_;
  json root_;
  std::vector<json*> open_;
  std::string key_;
  std::string error_;
};

// Length of the UTF-8 character at the front of `text`, or 0 when its bytes are not one.
// Overlong forms, surrogates and values above U+10FFFF are none.
std::size_t CharacterAt(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
  }
  const std::uint8_t second = byte(1);
  const bool bad = (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
                   (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F);
  return bad ? 0 : length;
}

}  // namespace

Result<json> ParseJson(std::string_view text, std::size_t max_depth) {
  try {
    BoundedBuilder builder(max_depth);
    if (!json::sax_parse(text.begin(), text.end(), &builder)) {
      return InvalidArgument(builder.error());
    }
    return builder.Take();
  } catch (const std::exception& e) {
    return InvalidArgument(fmt::format("not JSON: {}", e.what()));
  }
}

std::string Dump(const json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

std::string CutText(std::string_view text, std::size_t max_bytes) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  std::string clean;
  while (!text.empty()) {
    const std::size_t length = CharacterAt(text);
    const std::string_view character = length == 0 ? kReplacement : text.substr(0, length);
    if (clean.size() + character.size() > max_bytes) break;
    clean.append(character);
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return clean;
}

std::string Quoted(std::string_view text) {
  constexpr std::size_t kMaxShown = 40;
  std::string shown(text.substr(0, kMaxShown));
  for (char& c : shown) {
    if (c < ' ' || c > '~' || c == '"') c = '?';
  }
  return fmt::format("\"{}{}\"", shown, text.size() > kMaxShown ? "…" : "");
}

}  // namespace muster::codec
