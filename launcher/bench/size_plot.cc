// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launcher/bench/plots.h"
#include "launcher/bench/svg.h"

namespace dtrain::bench {
namespace {

void DrawDecades(Svg& svg, const Axis& y, const Frame& frame) {
  for (double tick = y.low(); tick <= y.high() * 1.001; tick *= 10) {
    const double at = y.At(tick);
    svg.Line({frame.left, at}, {frame.right, at}, tick == y.low() ? "axis" : "grid");
    svg.Text({frame.left - 8, at + 4}, ShortNumber(tick), "soft small", Anchor::kEnd);
  }
}

void DrawSizes(Svg& svg, const Axis& x, const Frame& frame) {
  for (double tick = 4; tick <= x.high() * 1.001; tick *= 16) {
    if (tick < x.low()) continue;
    svg.Line({x.At(tick), frame.top}, {x.At(tick), frame.bottom}, "grid");
    svg.Text({x.At(tick), frame.bottom + 18}, SizeText(tick), "soft small", Anchor::kMiddle);
  }
}

void DrawSizeSeries(Svg& svg, const std::vector<SizeRow>& rows, const Frame& frame,
                    const char* label, const char* classes, double SizeRow::*field) {
  std::vector<double> sizes;
  std::vector<double> values;
  for (const SizeRow& row : rows) {
    sizes.push_back(static_cast<double>(row.bytes));
    values.push_back(row.*field);
  }
  const auto [lowest, highest] = std::minmax_element(sizes.begin(), sizes.end());
  const Axis x(*lowest, *highest, frame.left, frame.right, true);
  const auto [low, high] = Decades(values);
  const Axis y(low, high, frame.bottom, frame.top, true);
  svg.Text({frame.left, frame.top - 12}, label, "soft");
  DrawDecades(svg, y, frame);
  DrawSizes(svg, x, frame);
  std::vector<Point> points;
  for (size_t i = 0; i < rows.size(); ++i) points.push_back({x.At(sizes[i]), y.At(values[i])});
  svg.Polyline(points, absl::StrCat("line ", classes));
  for (size_t i = 0; i < rows.size(); ++i) {
    svg.Dot(points[i], classes,
            absl::StrFormat("%s: %.3g GB/s bus bandwidth, %.4g us", SizeText(sizes[i]),
                            rows[i].busbw_gbs, rows[i].time_us));
  }
}

}  // namespace

std::string SizeText(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.3g %s", bytes, kUnits[unit]);
}

std::string SizePlot(const std::vector<SizeRow>& rows, const std::string& title) {
  if (rows.empty()) return EmptyPlot(title);
  Svg svg(kPlotWidth, 640, title);
  svg.Text({24, 32}, title, "title ink");
  DrawSizeSeries(svg, rows, {70, 84, kPlotWidth - 30, 310}, "bus bandwidth, GB/s", "s1",
                 &SizeRow::busbw_gbs);
  DrawSizeSeries(svg, rows, {70, 384, kPlotWidth - 30, 600}, "time, us", "s2", &SizeRow::time_us);
  return std::move(svg).Finish();
}

}  // namespace dtrain::bench
