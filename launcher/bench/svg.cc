// SPDX-License-Identifier: Apache-2.0
#include "launcher/bench/svg.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/text.h"

namespace dtrain::bench {
namespace {

// Plain colours in both halves, no variables: other viewers than browsers know only these.
constexpr char kStyle[] = R"(<style>
text { font: 13px system-ui, sans-serif; }
.title { font-size: 16px; font-weight: 600; }
.small { font-size: 11px; }
.page { fill: #fcfcfb; }
.ink { fill: #0b0b0b; }
.soft { fill: #52514e; }
.grid { stroke: #e1e0d9; stroke-width: 1; fill: none; }
.axis { stroke: #b5b4ac; stroke-width: 1; fill: none; }
.dashed { stroke-dasharray: 5 4; stroke: #8a8982; stroke-width: 1.5; fill: none; }
.line { stroke-width: 2; fill: none; stroke-linejoin: round; }
.gap { stroke: #fcfcfb; stroke-width: 2; }
.slow { stroke: #d03b3b; stroke-width: 3; }
.warn { fill: #c22f2f; font-weight: 600; }
.none { fill: #efeee8; }
.s1 { fill: #2a78d6; } .line.s1 { stroke: #2a78d6; fill: none; }
.s2 { fill: #eb6834; } .line.s2 { stroke: #eb6834; fill: none; }
.s3 { fill: #1baf7a; } .line.s3 { stroke: #1baf7a; fill: none; }
.s4 { fill: #b5b4ac; }
@media (prefers-color-scheme: dark) {
  .page { fill: #1a1a19; }
  .ink { fill: #ffffff; }
  .soft { fill: #c3c2b7; }
  .grid { stroke: #2c2c2a; }
  .axis { stroke: #55544f; }
  .gap { stroke: #1a1a19; }
  .warn { fill: #f07a7a; }
  .none { fill: #262624; }
  .s1 { fill: #3987e5; } .line.s1 { stroke: #3987e5; fill: none; }
  .s2 { fill: #d95926; } .line.s2 { stroke: #d95926; fill: none; }
  .s3 { fill: #199e70; } .line.s3 { stroke: #199e70; fill: none; }
  .s4 { fill: #6b6a64; }
}
</style>
)";

constexpr char kPageStyle[] = R"(<style>
:root { color-scheme: light dark; }
body { margin: 24px auto; max-width: 960px; padding: 0 16px; background: #fcfcfb; color: #0b0b0b; }
svg { width: 100%; height: auto; }
pre { overflow-x: auto; font-size: 13px; line-height: 1.4; }
@media (prefers-color-scheme: dark) { body { background: #1a1a19; color: #ffffff; } }
</style>
)";

std::string Tip(absl::string_view tip) {
  return tip.empty() ? "" : absl::StrCat("<title>", EscapeXml(tip), "</title>");
}

const char* NameOf(Anchor anchor) {
  return anchor == Anchor::kStart ? "start" : anchor == Anchor::kMiddle ? "middle" : "end";
}

}  // namespace

std::string EscapeXml(absl::string_view text) {
  return absl::StrReplaceAll(
      Escape(text, text.size()),
      {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

Svg::Svg(double width, double height, absl::string_view title) {
  absl::StrAppendFormat(&body_,
                        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" "
                        "width=\"%g\" height=\"%g\" role=\"img\">\n<title>%s</title>\n",
                        width, height, width, height, EscapeXml(title));
  body_ += kStyle;
  absl::StrAppendFormat(&body_, "<rect class=\"page\" width=\"%g\" height=\"%g\"/>\n", width,
                        height);
}

void Svg::Text(Point at, absl::string_view text, absl::string_view classes, Anchor anchor) {
  absl::StrAppendFormat(&body_,
                        "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">%s</text>\n",
                        at.x, at.y, classes, NameOf(anchor), EscapeXml(text));
}

void Svg::TextIn(Point at, absl::string_view text, absl::string_view colour) {
  absl::StrAppendFormat(&body_,
                        "<text x=\"%.1f\" y=\"%.1f\" class=\"small\" style=\"fill: %s\" "
                        "text-anchor=\"middle\">%s</text>\n",
                        at.x, at.y, colour, EscapeXml(text));
}

void Svg::Line(Point from, Point to, absl::string_view classes) {
  absl::StrAppendFormat(&body_,
                        "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n",
                        from.x, from.y, to.x, to.y, classes);
}

void Svg::Polyline(const std::vector<Point>& points, absl::string_view classes) {
  absl::StrAppendFormat(&body_, "<polyline class=\"%s\" points=\"", classes);
  for (const Point& point : points) absl::StrAppendFormat(&body_, "%.1f,%.1f ", point.x, point.y);
  body_ += "\"/>\n";
}

void Svg::Dot(Point at, absl::string_view classes, absl::string_view tip) {
  absl::StrAppendFormat(&body_,
                        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" class=\"%s\">%s</circle>\n", at.x,
                        at.y, classes, Tip(tip));
}

void Svg::Box(Point at, double width, double height, absl::string_view classes,
              absl::string_view fill, absl::string_view tip) {
  const std::string style = fill.empty() ? "" : absl::StrCat(" style=\"fill: ", fill, "\"");
  absl::StrAppendFormat(
      &body_,
      "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" class=\"%s\"%s>%s</rect>\n", at.x,
      at.y, width, height, classes, style, Tip(tip));
}

std::string Svg::Finish() && { return std::move(body_) + "</svg>\n"; }

Axis::Axis(double low, double high, double from, double to, bool logarithmic)
    : low_(low),
      high_(high > low ? high : low * 2 + 1),
      from_(from),
      to_(to),
      logarithmic_(logarithmic) {}

double Axis::At(double value) const {
  const double inside = std::clamp(value, low_, high_);
  const double part = logarithmic_ ? std::log(inside / low_) / std::log(high_ / low_)
                                   : (inside - low_) / (high_ - low_);
  return from_ + part * (to_ - from_);
}

std::pair<double, double> Decades(const std::vector<double>& values) {
  double low = 0;
  double high = 0;
  for (const double value : values) {
    if (value <= 0) continue;
    low = low == 0 ? value : std::min(low, value);
    high = std::max(high, value);
  }
  if (low == 0) return {1, 10};
  low = std::pow(10, std::floor(std::log10(low)));
  high = std::pow(10, std::ceil(std::log10(high)));
  return {low, high > low ? high : low * 10};
}

std::string ShortNumber(double value) { return absl::StrFormat("%g", value); }

std::string EmptyPlot(absl::string_view title) {
  Svg svg(kPlotWidth, 80, title);
  svg.Text({24, 32}, title, "title ink");
  svg.Text({24, 58}, "nothing was measured", "soft");
  return std::move(svg).Finish();
}

std::vector<double> RoundTicks(double highest) {
  const double rough = std::max(highest, 1e-9) / 5;
  const double decade = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * decade;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * decade >= rough) {
      step = factor * decade;
      break;
    }
  }
  std::vector<double> ticks = {0};
  while (ticks.back() < highest * (1 - 1e-9))
    ticks.push_back(step * static_cast<double>(ticks.size()));
  return ticks;
}

std::string Page(absl::string_view file, absl::string_view title, const std::string& svg,
                 absl::string_view table) {
  if (absl::EndsWith(file, ".svg")) return svg;
  // Lines of the table one by one: they are escaped, and a line's end would be, too.
  std::string lines;
  while (!table.empty()) {
    const size_t end = std::min(table.find('\n'), table.size());
    absl::StrAppend(&lines, EscapeXml(table.substr(0, end)), "\n");
    table.remove_prefix(std::min(end + 1, table.size()));
  }
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>",
      EscapeXml(title), "</title>\n",
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n", kPageStyle,
      "</head>\n<body>\n", svg, "<pre>", lines, "</pre>\n</body>\n</html>\n");
}

}  // namespace dtrain::bench
