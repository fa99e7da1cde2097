// The report as a browser shows it: the page is opened in a headless Chromium with a script put
// into it that measures what is drawn, and leaves the figures in the document.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "chaos/live/process.h"
#include "chaos/live/report.h"
#include "tests/chaos/live/report_fixture.h"

namespace muster::chaos {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr const char* kBrowser = "/usr/bin/chromium";
constexpr Duration kLong = Duration::Seconds(240);

// Runs last in the document. Reports as JSON in the text of #measured.
constexpr const char* kMeasure = R"js(
<pre id="measured"></pre><script>
(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const box = (element) => element.getBoundingClientRect();
  const seen = (element) => (element.firstChild || {}).nodeValue || '';
  const problems = [];
  for (const svg of all('svg')) {
    const frame = box(svg);
    const texts = [...svg.querySelectorAll('text')];
    const boxes = texts.map(box);
    texts.forEach((text, i) => {
      const b = boxes[i];
      if (b.left < frame.left - 1 || b.right > frame.right + 1 || b.top < frame.top - 1 ||
          b.bottom > frame.bottom + 1) problems.push('outside ' + svg.id + ': ' + seen(text));
      for (let j = 0; j < i; ++j) {
        const a = boxes[j];
        if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0.5 &&
            Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
          problems.push('overlap ' + svg.id + ': ' + seen(texts[j]) + ' / ' + seen(text));
      }
    });
    for (const shape of svg.querySelectorAll('rect,path,line')) {
      const b = box(shape);
      if (b.left < frame.left - 1 || b.right > frame.right + 1 || b.bottom > frame.bottom + 1)
        problems.push('shape outside ' + svg.id + ': ' + shape.outerHTML.slice(0, 80));
    }
  }
  const width = document.documentElement.clientWidth;
  for (const element of all('main > *, main p, main dl div'))
    if (box(element).right > width + 1) problems.push('wider than the window: ' + element.tagName);
  for (const element of all('dd, dt, .lane, #repeat'))
    if (element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 0)
      problems.push('cut off: ' + element.textContent);
  const colour = (selector) => {
    const element = document.querySelector(selector);
    return element ? getComputedStyle(element).color + getComputedStyle(element).backgroundColor
                   : '';
  };
  const svg = document.querySelector('#timeline');
  document.querySelector('#measured').textContent = JSON.stringify({
    problems: problems.slice(0, 20), errors: window.errors, title: document.title,
    window: window.innerWidth, page: document.documentElement.scrollWidth, client: width,
    lanes: all('#timeline .lane').map(seen),
    bars: all('#timeline .bar:not(.coordinator)').map((bar) => ({
      x: box(bar).left - box(svg).left, width: box(bar).width,
      lane: Math.round(box(bar).top - box(svg).top), title: bar.textContent})),
    coordinators: all('.bar.coordinator').length, saved: all('.saved').length,
    numbers: all('#timeline .number').map(seen), faults: all('#timeline rect.fault').length,
    phases: all('#timeline .phase').length, reforms: all('#timeline .reform').length,
    standing: document.querySelector('#loss .loss')?.getTotalLength() || 0,
    voided: document.querySelector('#loss .voided')?.getTotalLength() || 0,
    findings: all('tr.finding').length, headless: all('table').filter(
        (table) => !table.querySelector('thead th[scope=col]')).length,
    ok: colour('.mark.ok'), bad: colour('.mark.bad'), open: colour('.mark.open'),
    banner: colour('#verdict'), background: getComputedStyle(document.body).backgroundColor,
    requests: performance.getEntriesByType('resource').map((entry) => entry.name),
    external: all('[src],link,iframe,object,[*|href]').length,
  });
})();
</script>)js";

constexpr const char* kCatchErrors =
    "<script>window.errors=[];window.addEventListener('error',e=>errors.push(e.message));"
    "for(const level of ['error','warn']){console[level]=(...a)=>errors.push(a.join(' "
    "'))}</script>";

std::string Unescaped(std::string text) {
  for (const auto& [from, to] : {std::pair{"&lt;", "<"}, {"&gt;", ">"}, {"&amp;", "&"}}) {
    const std::string mark = from;
    for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos; ++at) {
      text.replace(at, mark.size(), to);
    }
  }
  return text;
}

std::string TextOf(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ReportBrowserTest : public ::testing::Test {
 protected:
  ReportBrowserTest() {
    std::string name = (fs::temp_directory_path() / "report-browser-XXXXXX").string();
    directory_ = ::mkdtemp(name.data());
  }
  ~ReportBrowserTest() override { fs::remove_all(directory_); }
  void SetUp() override {
    ASSERT_TRUE(fs::exists(kBrowser)) << kBrowser << " is missing: ./run test installs it";
  }

  // Opens the page. What Chromium prints goes to `output` below the test's directory.
  void Browse(const std::string& page, int width, const std::vector<std::string>& flags,
              const std::string& output) {
    std::ofstream(directory_ / "page.html", std::ios::binary) << page;
    fs::remove_all(directory_ / "profile");
    ProcessOptions options;
    // Its complaints about a machine without a desktop are not the page's.
    options.argv = {"/bin/sh",
                    "-c",
                    R"(exec "$@" 2>"$0")",
                    directory_ / "complaints",
                    kBrowser,
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-quic",
                    "--no-first-run",
                    "--disable-background-networking",
                    "--disable-component-update",
                    "--disable-sync",
                    "--hide-scrollbars",
                    "--disable-dev-shm-usage",
                    fmt::format("--window-size={},1400", width),
                    fmt::format("--user-data-dir={}", (directory_ / "profile").string())};
    options.argv.insert(options.argv.end(), flags.begin(), flags.end());
    options.argv.push_back("file://" + (directory_ / "page.html").string());
    options.output = directory_ / output;
    options.environment = {{"HOME", directory_.string()}};
    const Result<int> code = RunToEnd(options, kLong);
    ASSERT_TRUE(code.ok()) << code.status().message();
    ASSERT_EQ(*code, 0) << TextOf(directory_ / "complaints");
  }

  Json Measure(std::string page, int width) {
    page.insert(page.find("<meta charset"), kCatchErrors);
    page.insert(page.find("</body>"), kMeasure);
    fs::remove(directory_ / "dom");
    Browse(page, width, {"--dump-dom"}, "dom");
    const std::string dom = TextOf(directory_ / "dom");
    const std::string begin = "<pre id=\"measured\">";
    const std::size_t from = dom.find(begin);
    const std::size_t to = dom.find("</pre>", from);
    if (from == std::string::npos || to == std::string::npos) return {};
    const std::size_t start = from + begin.size();
    return Json::parse(Unescaped(dom.substr(start, to - start)), nullptr, false);
  }

  // What holds for every page.
  static void ExpectInOrder(const Json& json) {
    ASSERT_TRUE(json.is_object()) << "nothing was measured";
    EXPECT_EQ(json["problems"], Json::array());
    EXPECT_EQ(json["errors"], Json::array());
    EXPECT_EQ(json["requests"], Json::array());
    EXPECT_EQ(json["external"], 0);
    EXPECT_EQ(json["headless"], 0);
    EXPECT_LE(json["page"], json["client"]);
  }

  fs::path directory_;
};

TEST_F(ReportBrowserTest, AnEventfulRun) {
  const Evidence evidence = EventfulRun();
  const Json json = Measure(HtmlReport(evidence, SomeFindings(true)), 1600);
  ExpectInOrder(json);
  EXPECT_EQ(json["lanes"], Json({"musterd", "a-0", "b-0", "c-0", "d-0"}));
  // Six generations of four workers; b-0 and c-0 each missed one.
  ASSERT_EQ(json["bars"].size(), 6U * 4 - 2);
  EXPECT_EQ(json["coordinators"], 2);
  EXPECT_EQ(json["saved"], std::ssize(evidence.events));
  EXPECT_EQ(json["numbers"], Json({"1", "2", "3", "4"}));
  EXPECT_EQ(json["faults"], 5);  // the cut hit two
  EXPECT_EQ(json["phases"], 5 * 5);
  EXPECT_EQ(json["reforms"], 5);
  EXPECT_GT(json["standing"], 500);
  EXPECT_GT(json["voided"], 5);
  EXPECT_EQ(json["findings"], 4);
  EXPECT_NE(json["ok"], json["bad"]);
  EXPECT_NE(json["ok"], json["open"]);
  EXPECT_EQ(json["banner"], json["bad"]);
  const Json held = Measure(HtmlReport(evidence, SomeFindings(false)), 1600);
  ExpectInOrder(held);
  EXPECT_EQ(held["banner"], held["ok"]);
}

// Times and pixels go together: the same straight line for the ends of all bars.
TEST_F(ReportBrowserTest, BarsStandWhereTheirTimesAre) {
  const Evidence evidence = EventfulRun();
  const Json json = Measure(HtmlReport(evidence, SomeFindings(true)), 1600);
  ExpectInOrder(json);
  // First and last record of a-0 by generation, in the order of its bars.
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> times;
  for (const StepRecord& record : evidence.facts.records) {
    if (record.worker != "a-0") continue;
    auto& [from, to] = times.try_emplace(record.generation, record.t_ns, record.t_ns).first->second;
    to = std::max(to, record.t_ns);
  }
  const auto begin = times.begin()->second.first;
  const auto end = times.rbegin()->second.second;
  ASSERT_GE(json["bars"].size(), times.size());
  const double left = json["bars"][0]["x"];
  const Json& last = json["bars"][times.size() - 1];
  const double right = last["x"].get<double>() + last["width"].get<double>();
  ASSERT_GT(right, left + 700);
  std::size_t i = 0;
  for (const auto& [generation, span] : times) {
    const Json& bar = json["bars"][i++];
    const auto x = [&](std::int64_t t_ns) {
      return left +
             static_cast<double>(t_ns - begin) / static_cast<double>(end - begin) * (right - left);
    };
    EXPECT_EQ(bar["lane"], json["bars"][0]["lane"]);
    EXPECT_NEAR(bar["x"], x(span.first), 1) << "generation " << generation;
    EXPECT_NEAR(bar["x"].get<double>() + bar["width"].get<double>(), x(span.second), 1);
    EXPECT_EQ(bar["title"].get<std::string>().find(fmt::format("generation {},", generation)), 0U);
  }
}

TEST_F(ReportBrowserTest, ANarrowWindowScrollsOnlyWhatIsWide) {
  const Json json = Measure(HtmlReport(EventfulRun(), SomeFindings(true)), 400);
  ExpectInOrder(json);
  EXPECT_LE(json["client"], 520);  // some versions have a least width above 400
}

TEST_F(ReportBrowserTest, NothingThatTheRunSaysBecomesPartOfThePage) {
  const Json json = Measure(HtmlReport(HostileRun(), SomeFindings(true)), 1600);
  ExpectInOrder(json);
  EXPECT_NE(json["title"], "owned");
  EXPECT_EQ(json["lanes"].size(), 41U);
  EXPECT_GT(json["numbers"].size(), 20U);
}

// The measuring itself: what is wrong is seen.
TEST_F(ReportBrowserTest, WhatIsWrongIsSeen) {
  std::string page = HtmlReport(EventfulRun(), SomeFindings(true));
  const std::string end = "</svg>";
  page.insert(page.find(end),
              "<text x=\"96\" y=\"60\">over</text><text x=\"96\" y=\"62\">another</text>"
              "<text x=\"1170\" y=\"20\">far outside</text>");
  page.insert(page.find("</main>"), "<p style=\"width:3000px\">wide</p><script>oops()</script>");
  const Json json = Measure(page, 1600);
  ASSERT_TRUE(json.is_object());
  const std::string problems = json["problems"].dump();
  EXPECT_NE(problems.find("overlap timeline: over / another"), std::string::npos) << problems;
  EXPECT_NE(problems.find("outside timeline: far outside"), std::string::npos) << problems;
  EXPECT_NE(problems.find("wider than the window: P"), std::string::npos) << problems;
  EXPECT_GT(json["page"], json["client"]);
  EXPECT_EQ(json["errors"].size(), 1U);
}

TEST_F(ReportBrowserTest, ARunOfWhichNothingCame) {
  const Json json = Measure(HtmlReport(EmptyRun(), {}), 400);
  ExpectInOrder(json);
  EXPECT_EQ(json["bars"].size(), 0U);
}

TEST_F(ReportBrowserTest, ThereIsAPictureInLightAndInDark) {
  const std::string page = HtmlReport(EventfulRun(), SomeFindings(true));
  std::vector<std::string> pictures;
  const fs::path blank = directory_ / "blank.png";
  Browse("<!doctype html><title>blank</title>", 1600, {"--screenshot=" + blank.string()}, "output");
  const std::string empty = TextOf(blank);
  ASSERT_EQ(empty.substr(1, 3), "PNG");
  for (const bool dark : {false, true}) {
    const fs::path picture = directory_ / (dark ? "dark.png" : "light.png");
    std::vector<std::string> flags = {"--screenshot=" + picture.string()};
    if (dark) flags.emplace_back("--blink-settings=preferredColorScheme=0");
    Browse(page, 1600, flags, "output");
    pictures.push_back(TextOf(picture));
    EXPECT_EQ(pictures.back().substr(1, 3), "PNG");
    // Far more than a page takes with nothing on it.
    EXPECT_GT(pictures.back().size(), 4 * empty.size());
  }
  EXPECT_NE(pictures[0], pictures[1]);
}

}  // namespace
}  // namespace muster::chaos
