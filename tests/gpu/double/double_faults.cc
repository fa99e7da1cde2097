#include "tests/gpu/double/double_faults.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <set>

#include "tests/gpu/double/double_hooks.h"

namespace muster::gpu_double {
namespace {

constexpr std::array<std::string_view, 18> kNames = {
    // The CUDA runtime's.
    "out-of-memory", "out-of-pinned-memory", "kernel-hang", "kernel-fault", "no-kernel-image",
    // NCCL's.
    "id-error", "init-hang", "init-error", "connect-hang", "collective-error", "collective-hang",
    "collective-wrong", "async-error", "abort-hang", "abort-slow", "abort-sticky", "finalize-hang",
    "destroy-hang"};

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

bool ParseNumber(std::string_view text, int* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && *number >= 0;
}

// One "key=value". False when there is no such condition or its value is none.
bool SetCondition(std::string_view key, std::string_view value, Fault* fault) {
  int number = 0;
  const bool is_number = ParseNumber(value, &number);
  std::optional<int>* const counts[] = {&fault->comm, &fault->rank, &fault->op, &fault->n,
                                        &fault->generation};
  constexpr std::string_view kCounts[] = {"comm", "rank", "op", "n", "generation"};
  for (std::size_t i = 0; i < std::size(kCounts); ++i) {
    if (key != kCounts[i]) continue;
    *counts[i] = number;
    return is_number;
  }
  if (key == "ms") {
    fault->ms = number;
    return is_number;
  }
  if (value.empty()) return false;
  if (key == "kernel") {
    fault->kernel = value;
  } else if (key == "when") {
    fault->when = value;
  } else if (key == "error") {
    fault->error = value;
  } else if (key == "if") {
    const std::size_t colon = value.find(':');
    if (colon == std::string_view::npos) return false;
    fault->if_variable = value.substr(0, colon);
    fault->if_value = value.substr(colon + 1);
  } else {
    return false;
  }
  return true;
}

// "muster-g12" -> 12
std::optional<int> TrailingNumber(std::string_view text) {
  const std::size_t last = text.find_last_not_of("0123456789");
  const std::string_view digits = last == std::string_view::npos ? text : text.substr(last + 1);
  int number = 0;
  if (digits.empty() || !ParseNumber(digits, &number)) return std::nullopt;
  return number;
}

const std::vector<Fault>& Faults() {
  static const std::vector<Fault>* const faults = [] {
    auto* const read = new std::vector<Fault>;  // lives as long as the threads that ask
    const std::string text = Environment("MUSTER_DOUBLE_FAULTS", "");
    if (const auto wrong = ParseFaults(text, read)) Die("MUSTER_DOUBLE_FAULTS: " + *wrong);
    return read;
  }();
  return *faults;
}

}  // namespace

bool Fault::Holds(const Moment& moment) const {
  if (comm && *comm != moment.comm) return false;
  if (rank && *rank != moment.rank) return false;
  if (op && *op != moment.op) return false;
  if (n && *n != moment.n) return false;
  if (generation && generation != TrailingNumber(moment.label)) return false;
  if (!kernel.empty() && kernel != moment.name) return false;
  if (!if_variable.empty()) {
    const char* value = std::getenv(if_variable.c_str());
    if (value == nullptr || if_value != value) return false;
  }
  return when.empty() || ::access(when.c_str(), F_OK) == 0;
}

std::optional<std::string> ParseFaults(std::string_view text, std::vector<Fault>* faults) {
  if (text.empty()) return std::nullopt;
  for (const std::string_view part : Split(text, ',')) {
    const std::vector<std::string_view> pieces = Split(part, '@');
    Fault fault;
    fault.name = pieces[0];
    if (std::ranges::find(kNames, pieces[0]) == kNames.end()) {
      return "there is no fault '" + fault.name + "'";
    }
    for (std::size_t i = 1; i < pieces.size(); ++i) {
      const std::size_t equals = pieces[i].find('=');
      if (equals == std::string_view::npos ||
          !SetCondition(pieces[i].substr(0, equals), pieces[i].substr(equals + 1), &fault)) {
        return "'" + std::string(pieces[i]) + "' is no condition";
      }
    }
    faults->push_back(std::move(fault));
  }
  return std::nullopt;
}

const Fault* Struck(std::string_view name, const Moment& moment) {
  static std::mutex& mutex = *new std::mutex;
  static std::set<const Fault*>& told = *new std::set<const Fault*>;
  for (const Fault& fault : Faults()) {
    if (fault.name != name || !fault.Holds(moment)) continue;
    const std::lock_guard lock(mutex);
    if (told.insert(&fault).second) Say("the fault " + fault.name + " strikes");
    return &fault;
  }
  return nullptr;
}

}  // namespace muster::gpu_double
