// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

// Drawing of charts as SVG text: no script, no font and nothing else from elsewhere; light or dark
// as the reader's browser is. Pure.
namespace dtrain::bench {

// For text and attribute values of SVG and HTML; control bytes and broken UTF-8 are escaped, too.
std::string EscapeXml(absl::string_view text);

enum class Anchor { kStart, kMiddle, kEnd };

struct Point {
  double x;
  double y;
};

// Classes stand for colours and strokes, see kStyle in the source: "ink", "soft", "grid", "s1" ..
// "s4" (series), "slow". All coordinates are pixels from the top left.
class Svg {
 public:
  Svg(double width, double height, absl::string_view title);

  void Text(Point at, absl::string_view text, absl::string_view classes = "ink",
            Anchor anchor = Anchor::kStart);
  // Centred, in a colour of its own: on a box that has one.
  void TextIn(Point at, absl::string_view text, absl::string_view colour);
  void Line(Point from, Point to, absl::string_view classes);
  void Polyline(const std::vector<Point>& points, absl::string_view classes);
  // `tip` is shown while the pointer is over it.
  void Dot(Point at, absl::string_view classes, absl::string_view tip);
  // `fill`: a colour, or empty for that of the classes.
  void Box(Point at, double width, double height, absl::string_view classes, absl::string_view fill,
           absl::string_view tip);

  std::string Finish() &&;

 private:
  std::string body_;
};

// Values to pixels, along one direction.
class Axis {
 public:
  Axis(double low, double high, double from, double to, bool logarithmic);
  double At(double value) const;
  double low() const { return low_; }
  double high() const { return high_; }

 private:
  double low_, high_, from_, to_;
  bool logarithmic_;
};

// The powers of ten around all positive `values`; {1, 10} when there is none.
std::pair<double, double> Decades(const std::vector<double>& values);

// The inner rectangle of a chart.
struct Frame {
  double left;
  double top;
  double right;
  double bottom;
};

inline constexpr double kPlotWidth = 920;

std::string ShortNumber(double value);  // "0.5", "1e+06"

// A chart of nothing, which says so.
std::string EmptyPlot(absl::string_view title);

// Round steps from 0 to at least `highest`, about five.
std::vector<double> RoundTicks(double highest);

// As a file of its own: `svg` as it is for FILE.svg; else a page with the table below it.
std::string Page(absl::string_view file, absl::string_view title, const std::string& svg,
                 absl::string_view table);

}  // namespace dtrain::bench
