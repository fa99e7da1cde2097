#include "chaos/live/report.h"

namespace muster::chaos {
std::string HtmlReport(const Evidence&, const std::vector<Finding>&) { return "<!doctype html>"; }
}  // namespace muster::chaos
