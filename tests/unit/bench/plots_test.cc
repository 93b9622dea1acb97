// SPDX-License-Identifier: Apache-2.0
#include "launcher/bench/plots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "launcher/bench/svg.h"

namespace dtrain::bench {
namespace {

using testing::HasSubstr;
using testing::Not;

// What keeps `xml` from being well-formed; empty when nothing does. Knows elements, attributes in
// double quotes and the five entities: that is all we write.
std::string WhatIsWrong(const std::string& xml) {
  std::vector<std::string> open;
  size_t i = 0;
  while (i < xml.size()) {
    if (xml[i] == '>' && open.empty()) return "a stray >";
    if (xml[i] == '&') {
      const size_t end = xml.find(';', i);
      const std::string entity = end == std::string::npos ? "" : xml.substr(i, end - i + 1);
      if (entity != "&amp;" && entity != "&lt;" && entity != "&gt;" && entity != "&quot;" &&
          entity != "&#39;") {
        return "a bare &";
      }
    }
    if (xml[i] != '<') {
      ++i;
      continue;
    }
    size_t end = i;
    bool quoted = false;
    for (; end < xml.size() && (quoted || xml[end] != '>'); ++end) {
      if (xml[end] == '"') quoted = !quoted;
      if (quoted && xml[end] == '<') return "a < in an attribute";
    }
    if (end == xml.size()) return "an open tag";
    const std::string tag = xml.substr(i + 1, end - i - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" />"));
    i = end + 1;
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1))
        return "</" + tag.substr(1) + "> closes another";
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : open.back() + " is not closed";
}

// Nothing that a browser would fetch or run.
void ExpectSelfContained(const std::string& page) {
  for (const char* word :
       {"href", "src=", "url(", "@import", "<script", "<link", "<img", "<iframe"}) {
    EXPECT_THAT(page, Not(HasSubstr(word)));
  }
  // The one address that there is, is a name: no one fetches it.
  const std::string name = "xmlns=\"http://www.w3.org/2000/svg\"";
  std::string rest = page;
  for (size_t at; (at = rest.find(name)) != std::string::npos;) rest.erase(at, name.size());
  EXPECT_THAT(rest, Not(HasSubstr("://")));
}

void ExpectNumbersAreNumbers(const std::string& page) {
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  EXPECT_THAT(page, Not(HasSubstr("inf")));
}

std::vector<SizeRow> SomeSizes() {
  std::vector<SizeRow> rows;
  for (uint64_t bytes = 4; bytes <= 1 << 30; bytes *= 2) {
    const double us = 10 + static_cast<double>(bytes) / 1000;
    const double gbs = static_cast<double>(bytes) / us / 1e3;
    rows.push_back({{us, gbs, gbs, 0}, bytes});
  }
  return rows;
}

LaunchFacts Named(const std::vector<std::string>& hosts) {
  LaunchFacts facts;
  for (const std::string& host : hosts) facts.ranks.push_back({host, 0, 0, 0, 0});
  return facts;
}

// For people: DTRAIN_PLOT_DIR=/tmp unit_bench --gtest_filter='*Plots*' leaves the pages there.
void Keep(const std::string& name, const std::string& svg) {
  const char* folder = std::getenv("DTRAIN_PLOT_DIR");
  if (folder == nullptr) return;
  FILE* file = std::fopen((std::string(folder) + "/" + name).c_str(), "w");
  if (file == nullptr) return;
  std::fputs(svg.c_str(), file);
  std::fclose(file);
}

void ExpectGood(const std::string& name, const std::string& svg, const std::string& title) {
  Keep(name + ".svg", svg);
  EXPECT_EQ(WhatIsWrong(svg), "");
  ExpectSelfContained(svg);
  ExpectNumbersAreNumbers(svg);
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(svg, HasSubstr(title));
  const std::string page = Page("x.html", title, svg, "# a <table> & \"more\"\n  4 5\n");
  Keep(name + ".html", page);
  EXPECT_EQ(page.rfind("<!DOCTYPE html>\n", 0), 0u);
  EXPECT_EQ(WhatIsWrong(page.substr(page.find('\n'))), "");
  ExpectSelfContained(page);
  EXPECT_THAT(page, HasSubstr("# a &lt;table&gt; &amp; &quot;more&quot;\n  4 5\n"));
  EXPECT_EQ(Page("x.svg", title, svg, "table"), svg);
}

// The check sees what it is for.
TEST(BenchPlots, TheChecksSeeWhatIsWrong) {
  EXPECT_EQ(WhatIsWrong("<a><b x=\"1\"/></a>"), "");
  EXPECT_NE(WhatIsWrong("<a><b></a></b>"), "");
  EXPECT_NE(WhatIsWrong("<a>x & y</a>"), "");
  EXPECT_NE(WhatIsWrong("<a"), "");
}

TEST(BenchPlots, Sizes) {
  ExpectGood("sizes", SizePlot(SomeSizes(), "allreduce, 4 ranks"), "allreduce, 4 ranks");
}

TEST(BenchPlots, OneSizeOrNoTimeIsAPlotToo) {
  ExpectGood("one-size", SizePlot({{{10, 0.1, 0, 0}, 4}}, "one"), "one");
  ExpectGood("zero", SizePlot({{{0, 0, 0, 0}, 4}, {{0, 0, 0, 0}, 8}}, "none"), "none");
  ExpectGood("empty", SizePlot({}, "empty"), "nothing was measured");
}

TEST(BenchPlots, PairsWithASlowOne) {
  std::vector<PairRow> rows;
  for (uint32_t from = 0; from < 8; ++from) {
    for (uint32_t to = from + 1; to < 8; ++to) {
      rows.push_back({from, to, 30, from == 2 && to == 5 ? 0.3 : 1 + 0.03 * (from + to)});
    }
  }
  const std::string svg = PairPlot(
      rows, Named({"node0", "node1", "node2", "node3", "node4", "node5", "node6", "node7"}),
      "pairs");
  ExpectGood("pairs", svg, "pairs");
  EXPECT_THAT(svg, HasSubstr("node2 to node5: 0.3 GB/s"));
  EXPECT_THAT(svg, HasSubstr("class=\"slow\""));
  rows[0].bandwidth_gbs = 1;
  EXPECT_THAT(PairPlot({{0, 1, 1, 1}}, {}, "x"), Not(HasSubstr("class=\"slow\"")));
}

TEST(BenchPlots, ManyNodesAndWildNumbers) {
  std::vector<PairRow> rows;
  for (uint32_t to = 1; to < 200; ++to) rows.push_back({0, to, 30, 1.0 / to});
  ExpectGood("many", PairPlot(rows, {}, "many"), "many");
  ExpectGood("wild", PairPlot({{0, 999'999, 1, 1}}, {}, "wild"), "nothing was measured");
  ExpectGood("none", PairPlot({{0, 1, 1, 0}}, {}, "none"), "nothing was measured");
}

TEST(BenchPlots, NamesOfHostsAndCommandsCannotBreakOut) {
  const std::string evil = "<script>\"&'\x01\xff";
  const std::string svg = PairPlot({{0, 1, 1, 1}}, Named({evil, "b"}), evil);
  EXPECT_EQ(WhatIsWrong(svg), "");
  ExpectSelfContained(svg);
  EXPECT_EQ(EscapeXml("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
}

TEST(BenchPlots, Scaling) {
  std::vector<ScalingRow> rows;
  for (uint32_t ranks : {1u, 2u, 4u, 8u}) {
    for (bool local : {true, false}) {
      if (local && ranks > 2) continue;
      ScalingRow row;
      row.count = {ranks, local};
      row.compute = 0.09;
      row.allreduce = ranks == 1 ? 0 : 0.01 + 0.004 * ranks;
      row.optimiser = 0.008;
      row.step = row.compute + row.allreduce + row.optimiser + 0.003;
      row.speed_up = ranks * 0.101 / row.step;
      rows.push_back(row);
    }
  }
  ExpectGood("scaling", ScalingPlot(rows, "scaling of train.py"), "scaling of train.py");
  ScalingRow nothing;
  nothing.count.ranks = 1;
  ExpectGood("scaling-zero", ScalingPlot({nothing}, "zero"), "zero");
  ExpectGood("scaling-none", ScalingPlot({}, "none"), "nothing was measured");
}

TEST(BenchPlots, TicksAreRound) {
  EXPECT_EQ(RoundTicks(10), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(RoundTicks(0.9).size(), 6u);
  EXPECT_GE(RoundTicks(7).back(), 7);
  EXPECT_EQ(Decades({0.5, 20, 0}), (std::pair<double, double>(0.1, 100)));
  EXPECT_EQ(Decades({}), (std::pair<double, double>(1, 10)));
  EXPECT_EQ(Decades({10}), (std::pair<double, double>(10, 100)));
  EXPECT_EQ(SizeText(4), "4 B");
  EXPECT_EQ(SizeText(1 << 20), "1 MiB");
}

TEST(BenchPlots, LogarithmicAxesPutEqualFactorsAtEqualDistances) {
  const Axis axis(1, 10000, 0, 400, true);
  EXPECT_NEAR(axis.At(10), 100, 1e-9);
  EXPECT_NEAR(axis.At(1000), 300, 1e-9);
  EXPECT_EQ(axis.At(0), 0);
  EXPECT_EQ(axis.At(1e9), 400);
}

}  // namespace
}  // namespace dtrain::bench
