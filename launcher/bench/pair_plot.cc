// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launcher/bench/plots.h"
#include "launcher/bench/svg.h"
#include "launcher/bench/tables.h"

namespace dtrain::bench {
namespace {

// A cell smaller than this many pixels has no text.
constexpr double kRoomForText = 34;

// From light to dark blue, for 0 to 1; and a colour of text that can be read on it.
std::pair<std::string, const char*> Heat(double part) {
  constexpr int kFrom[3] = {0xe3, 0xef, 0xfc};
  constexpr int kTo[3] = {0x0d, 0x36, 0x6b};
  const double p = std::clamp(part, 0.0, 1.0);
  std::string colour = "#";
  for (int i = 0; i < 3; ++i) {
    absl::StrAppendFormat(&colour, "%02x",
                          static_cast<int>(std::lround(kFrom[i] + p * (kTo[i] - kFrom[i]))));
  }
  return {colour, p > 0.45 ? "#ffffff" : "#0b0b0b"};
}

// bandwidth[from][to]; where only one direction was measured, it stands for both. 0: not measured.
std::vector<std::vector<double>> Matrix(const std::vector<PairRow>& rows, size_t size) {
  std::vector<std::vector<double>> matrix(size, std::vector<double>(size, 0));
  for (const PairRow& row : rows) {
    matrix[row.from][row.to] = row.bandwidth_gbs;
    if (matrix[row.to][row.from] == 0) matrix[row.to][row.from] = row.bandwidth_gbs;
  }
  return matrix;
}

struct HeatCell {
  Point at;
  double side;
  double value;
  double highest;
  bool slow;
  std::string tip;
};

void DrawHeatCell(Svg& svg, const HeatCell& cell) {
  const auto [fill, text] = Heat(cell.value / cell.highest);
  svg.Box(cell.at, cell.side, cell.side, "gap", fill, cell.tip);
  if (cell.slow) {
    svg.Box({cell.at.x + 3, cell.at.y + 3}, cell.side - 6, cell.side - 6, "slow", "none", "");
  }
  if (cell.side < kRoomForText) return;
  svg.TextIn({cell.at.x + cell.side / 2, cell.at.y + cell.side / 2 + 4},
             absl::StrFormat("%.3g", cell.value), text);
}

void DrawHeatLegend(Svg& svg, Point at, double highest, bool any_slow) {
  constexpr int kSteps = 24;
  constexpr double kStep = 8;
  svg.Text({at.x, at.y + 12}, "0", "soft small");
  for (int i = 0; i < kSteps; ++i) {
    svg.Box({at.x + 14 + i * kStep, at.y}, kStep + 0.5, 14, "", Heat((i + 0.5) / kSteps).first, "");
  }
  const double end = at.x + 14 + kSteps * kStep + 8;
  svg.Text({end, at.y + 12}, absl::StrFormat("%.3g GB/s", highest), "soft small");
  if (!any_slow) return;
  svg.Box({end + 102, at.y + 1}, 14, 12, "slow", "none", "");
  svg.Text({end + 124, at.y + 12}, "less than half of the median", "soft small");
}

// Where the map stands, and what all of it needs.
struct Map {
  const LaunchFacts& facts;
  std::vector<std::vector<double>> bandwidth;
  Point origin;
  double side;
  double highest;
  double slow_below;
};

// Names at the left for as many rows as there is room for; at the top only where they fit.
void DrawNames(Svg& svg, const Map& map) {
  constexpr double kLine = 14;
  const size_t every = map.side >= kLine ? 1 : static_cast<size_t>(std::ceil(kLine / map.side));
  for (uint32_t i = 0; i < map.bandwidth.size(); ++i) {
    const double middle = map.side * (i + 0.5);
    if (i % every == 0) {
      svg.Text({map.origin.x - 8, map.origin.y + middle + 4}, NameOf(i, map.facts), "soft small",
               Anchor::kEnd);
    }
    if (map.side < kRoomForText) continue;
    svg.Text({map.origin.x + middle, map.origin.y - 8}, NameOf(i, map.facts), "soft small",
             Anchor::kMiddle);
  }
}

// Whether there was a slow one.
bool DrawCells(Svg& svg, const Map& map) {
  bool any_slow = false;
  for (uint32_t from = 0; from < map.bandwidth.size(); ++from) {
    for (uint32_t to = 0; to < map.bandwidth.size(); ++to) {
      const Point at = {map.origin.x + map.side * to, map.origin.y + map.side * from};
      const double value = map.bandwidth[from][to];
      if (value <= 0) {
        svg.Box(at, map.side, map.side, "none gap", "", "");
        continue;
      }
      const bool slow = value < map.slow_below;
      any_slow = any_slow || slow;
      DrawHeatCell(svg, {at, map.side, value, map.highest, slow,
                         absl::StrFormat("%s to %s: %.3g GB/s", NameOf(from, map.facts),
                                         NameOf(to, map.facts), value)});
    }
  }
  return any_slow;
}

}  // namespace

std::string PairPlot(const std::vector<PairRow>& rows, const LaunchFacts& facts,
                     const std::string& title) {
  size_t size = 0;
  double highest = 0;
  for (const PairRow& row : rows) {
    size = std::max<size_t>({size, row.from + 1, row.to + 1});
    highest = std::max(highest, row.bandwidth_gbs);
  }
  // Beyond that, cells are less than a pixel, and a stray number would ask for all memory.
  constexpr size_t kMostNodes = 1024;
  if (highest <= 0 || size > kMostNodes) return EmptyPlot(title);
  const double side = std::clamp(720.0 / static_cast<double>(size), 3.0, 72.0);
  const Map map = {
      facts, Matrix(rows, size), {150, 120}, side, highest, kSlowPart * MedianBandwidth(rows)};
  const double extent = side * static_cast<double>(size) + 24;
  Svg svg(std::max(kPlotWidth, map.origin.x + extent), map.origin.y + extent, title);
  svg.Text({24, 32}, title, "title ink");
  DrawNames(svg, map);
  DrawHeatLegend(svg, {24, 58}, highest, DrawCells(svg, map));
  return std::move(svg).Finish();
}

}  // namespace dtrain::bench
