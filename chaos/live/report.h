// What is left of a run for people and for machines: a page, JSON, and JUnit's XML.
#pragma once

#include <string>
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
// Safe between tags and in quoted attributes of HTML and XML.
[[nodiscard]] std::string Escaped(std::string_view text);

}  // namespace muster::chaos
