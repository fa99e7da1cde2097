// What is left of a run for people and for machines: a page, JSON, and JUnit's XML.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chaos/live/evidence.h"
#include "protocol/status.h"

namespace muster::chaos {

// One page that needs nothing else: verdict, timeline, loss, faults, incidents, processes.
[[nodiscard]] std::string HtmlReport(const Evidence& evidence,
                                     const std::vector<Finding>& findings);
// {"ok", "scenario", "seed", "program", "steps", "findings": […], "injections": […], …}
[[nodiscard]] std::string JsonReport(const Evidence& evidence,
                                     const std::vector<Finding>& findings);
// One test suite, one case for each finding.
[[nodiscard]] std::string JunitReport(const Evidence& evidence,
                                      const std::vector<Finding>& findings);
// report.html, report.json and junit.xml in `directory`, which is made; each is there whole or not
// at all. Errors name the file.
[[nodiscard]] Status WriteReport(const std::string& directory, const Evidence& evidence,
                                 const std::vector<Finding>& findings);

// Parts of the page: SVG pictures, `width` pixels wide.
[[nodiscard]] std::string TimelineSvg(const Evidence& evidence, int width);
[[nodiscard]] std::string LossSvg(const Evidence& evidence, int width);
// Safe between tags and in quoted attributes of HTML and XML: what is not UTF-8, or a character
// that XML does not allow, becomes U+FFFD.
[[nodiscard]] std::string Escaped(std::string_view text);
// The text, or its beginning and "…" where it has more than so many letters.
[[nodiscard]] std::string Shortened(std::string_view text, std::size_t letters);
// The command line that draws the same schedule again, quoted for a shell.
[[nodiscard]] std::string RepeatCommand(const Evidence& evidence);
// When the run was over, by what is known of it; CLOCK_REALTIME in ns.
[[nodiscard]] std::int64_t EndOf(const Evidence& evidence);

}  // namespace muster::chaos
