// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launcher/bench/plots.h"
#include "launcher/bench/svg.h"

namespace dtrain::bench {
namespace {

// Axes of the speed-up, with the ideal one.
void DrawIdeal(Svg& svg, const Axis& x, const Axis& y, const Frame& frame, double fewest,
               double most) {
  svg.Text({frame.left, frame.top - 12}, "speed-up by ranks; dashed: ideal", "soft");
  for (const double tick : RoundTicks(y.high())) {
    svg.Line({frame.left, y.At(tick)}, {frame.right, y.At(tick)}, tick == 0 ? "axis" : "grid");
    svg.Text({frame.left - 8, y.At(tick) + 4}, ShortNumber(tick), "soft small", Anchor::kEnd);
  }
  for (const double tick : RoundTicks(x.high())) {
    if (tick != std::floor(tick)) continue;  // there is no half rank
    svg.Text({x.At(tick), frame.bottom + 18}, ShortNumber(tick), "soft small", Anchor::kMiddle);
  }
  svg.Line({x.At(fewest), y.At(1)}, {x.At(most), y.At(most / fewest)}, "dashed");
}

// The line of the runs on this machine, or of those on hosts.
void DrawRuns(Svg& svg, const Axis& x, const Axis& y, const std::vector<ScalingRow>& rows,
              bool local) {
  std::vector<ScalingRow> of_kind;
  for (const ScalingRow& row : rows) {
    if (row.count.local == local) of_kind.push_back(row);
  }
  std::sort(of_kind.begin(), of_kind.end(),
            [](const ScalingRow& a, const ScalingRow& b) { return a.count.ranks < b.count.ranks; });
  std::vector<Point> points;
  for (const ScalingRow& row : of_kind)
    points.push_back({x.At(row.count.ranks), y.At(row.speed_up)});
  svg.Polyline(points, local ? "line s3" : "line s1");
  for (size_t i = 0; i < points.size(); ++i) {
    svg.Dot(points[i], local ? "s3" : "s1",
            absl::StrFormat("%d ranks%s: %.2f times as fast", of_kind[i].count.ranks,
                            local ? " on this machine" : "", of_kind[i].speed_up));
  }
}

void DrawSpeedUp(Svg& svg, const std::vector<ScalingRow>& rows, const Frame& frame) {
  double most = 1;
  double fewest = rows[0].count.ranks;
  double best = 1;
  for (const ScalingRow& row : rows) {
    most = std::max<double>(most, row.count.ranks);
    fewest = std::min<double>(fewest, row.count.ranks);
    best = std::max(best, row.speed_up);
  }
  const Axis x(0, RoundTicks(most).back(), frame.left, frame.right, false);
  const Axis y(0, RoundTicks(std::max(best, most / fewest)).back(), frame.bottom, frame.top, false);
  DrawIdeal(svg, x, y, frame, fewest, most);
  for (const bool local : {true, false}) DrawRuns(svg, x, y, rows, local);
}

struct Part {
  const char* name;
  const char* classes;
  double (*seconds)(const ScalingRow&);
};

constexpr Part kParts[] = {{"compute", "s1", [](const ScalingRow& r) { return r.compute; }},
                           {"all-reduce", "s2", [](const ScalingRow& r) { return r.allreduce; }},
                           {"optimiser", "s3", [](const ScalingRow& r) { return r.optimiser; }},
                           {"other", "s4", [](const ScalingRow& r) {
                              const double whole = r.step > 0 ? r.step : r.run;
                              return std::max(0.0, whole - r.compute - r.allreduce - r.optimiser);
                            }}};

void DrawSteps(Svg& svg, const std::vector<ScalingRow>& rows, const Frame& frame) {
  double longest = 0;
  for (const ScalingRow& row : rows) longest = std::max(longest, row.step > 0 ? row.step : row.run);
  const std::vector<double> ticks = RoundTicks(longest * 1e3);
  const Axis x(0, ticks.back(), frame.left, frame.right, false);
  svg.Text({frame.left, frame.top - 12}, rows[0].step > 0 ? "ms per step" : "ms in all", "soft");
  for (const double tick : ticks) {
    svg.Line({x.At(tick), frame.top}, {x.At(tick), frame.bottom}, tick == 0 ? "axis" : "grid");
    svg.Text({x.At(tick), frame.bottom + 18}, ShortNumber(tick), "soft small", Anchor::kMiddle);
  }
  const double room = (frame.bottom - frame.top) / static_cast<double>(rows.size());
  const double thick = std::min(24.0, room * 0.7);
  for (size_t i = 0; i < rows.size(); ++i) {
    const double top = frame.top + room * (static_cast<double>(i) + 0.5) - thick / 2;
    svg.Text({frame.left - 8, top + thick / 2 + 4},
             absl::StrCat(rows[i].count.local ? "-" : "", rows[i].count.ranks), "soft small",
             Anchor::kEnd);
    double sum = 0;
    for (const Part& part : kParts) {
      const double ms = part.seconds(rows[i]) * 1e3;
      const double from = x.At(sum);
      sum += ms;
      if (x.At(sum) - from < 0.5) continue;
      svg.Box({from, top}, x.At(sum) - from, thick, absl::StrCat(part.classes, " gap"), "",
              absl::StrFormat("%s: %.3g ms", part.name, ms));
    }
  }
}

void DrawPartsLegend(Svg& svg, Point at) {
  for (const Part& part : kParts) {
    svg.Box({at.x, at.y}, 12, 12, part.classes, "", "");
    svg.Text({at.x + 18, at.y + 11}, part.name, "soft small");
    at.x += 90;
  }
}

}  // namespace

std::string ScalingPlot(const std::vector<ScalingRow>& rows, const std::string& title) {
  if (rows.empty()) return EmptyPlot(title);
  Svg svg(kPlotWidth, 420, title);
  svg.Text({24, 32}, title, "title ink");
  DrawSpeedUp(svg, rows, {60, 84, 430, 340});
  DrawSteps(svg, rows, {510, 84, kPlotWidth - 30, 340});
  svg.Box({60, 380}, 12, 12, "s1", "", "");
  svg.Text({78, 391}, "on hosts", "soft small");
  svg.Box({150, 380}, 12, 12, "s3", "", "");
  svg.Text({168, 391}, "on this machine", "soft small");
  DrawPartsLegend(svg, {510, 380});
  return std::move(svg).Finish();
}

}  // namespace dtrain::bench
