#include "checkpoint/match.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace muster::checkpoint {
namespace {

// As many of each kind as fit into a message that somebody reads.
constexpr std::size_t kNamed = 8;

std::string Describe(const TensorSpec& tensor) {
  return fmt::format("{}{} [{}]", DTypeName(tensor.dtype),
                     tensor.logical_dtype.empty() ? "" : " as " + tensor.logical_dtype,
                     fmt::join(tensor.shape, ","));
}

// What the name stands for: itself, or what it is an alias of.
const std::string& OwnerOf(const TensorSpec& tensor) {
  return tensor.alias_of.empty() ? tensor.name : tensor.alias_of;
}

std::string ListOf(std::string_view what, const std::vector<std::string>& names) {
  if (names.empty()) return {};
  const std::size_t shown = std::min(names.size(), kNamed);
  return fmt::format(
      "; {} {}: {}{}", names.size(), what,
      fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
      shown < names.size() ? ", …" : "");
}

}  // namespace

TensorMatch MatchTensors(const std::vector<TensorSpec>& stored,
                         const std::vector<TensorSpec>& wanted) {
  std::unordered_map<std::string_view, std::size_t> by_name;
  for (std::size_t i = 0; i < stored.size(); ++i) by_name.emplace(stored[i].name, i);
  TensorMatch match;
  std::vector<bool> used(stored.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const TensorSpec& want = wanted[i];
    const auto found = by_name.find(want.name);
    if (found == by_name.end()) {
      match.missing.push_back(want.name);
      continue;
    }
    const TensorSpec& have = stored[found->second];
    used[found->second] = true;
    if (have.dtype != want.dtype || have.shape != want.shape ||
        have.logical_dtype != want.logical_dtype) {
      match.different.push_back(fmt::format("{}: {} is stored, and {} wanted", want.name,
                                            Describe(have), Describe(want)));
      continue;
    }
    match.pairs.push_back({i, found->second});
    if (OwnerOf(have) == OwnerOf(want)) continue;
    const auto of = by_name.find(want.alias_of);
    const bool apart = of != by_name.end() && OwnerOf(stored[of->second]) != OwnerOf(have);
    if (!want.alias_of.empty() && apart) match.tied_now.push_back({want.name, want.alias_of});
    if (want.alias_of.empty()) match.tied_before.push_back({want.name, have.alias_of});
  }
  for (std::size_t i = 0; i < stored.size(); ++i) {
    if (!used[i]) match.extra.push_back(stored[i].name);
  }
  return match;
}

Status CheckStrictMatch(const TensorMatch& match) {
  if (match.missing.empty() && match.extra.empty() && match.different.empty()) return {};
  return FailedPrecondition(fmt::format(
      "the checkpoint is of other tensors{}{}{}", ListOf("missing", match.missing),
      ListOf("not wanted", match.extra), ListOf("of another type or shape", match.different)));
}

}  // namespace muster::checkpoint
