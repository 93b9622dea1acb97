// SPDX-License-Identifier: Apache-2.0
// The first byte says how the rest is cut into pieces.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "launcher/output/line_splitter.h"
#include "tests/fuzz/expect.h"

namespace {

using dtrain::output::LineSplitter;
using Lines = std::vector<std::pair<std::string, bool>>;

Lines Split(absl::string_view text, size_t piece) {
  Lines lines;
  LineSplitter splitter;
  auto on_line = [&](absl::string_view line, bool ended) {
    DTRAIN_CHECK(line.size() <= LineSplitter::kMaxLine);
    DTRAIN_CHECK(line.find('\n') == absl::string_view::npos);
    DTRAIN_CHECK(ended || !line.empty());
    lines.emplace_back(std::string(line), ended);
  };
  for (size_t at = 0; at < text.size(); at += piece) {
    splitter.Add(text.substr(at, piece), on_line);
    DTRAIN_CHECK(splitter.pending() <= LineSplitter::kMaxLine);
  }
  splitter.Flush(on_line);
  DTRAIN_CHECK(splitter.pending() == 0);
  return lines;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  // A fuzzer does not find lines of 64 KiB by itself: a first line that starts with 0xFF is filled
  // up to beyond two of them.
  bool is_long = !text.empty() && text.front() == '\xff';
  if (is_long) text.insert(0, 2 * LineSplitter::kMaxLine + 10, 'x');

  Lines lines = Split(text, is_long ? 4096 + data[0] * 256 : 1 + data[0]);
  std::string joined;
  for (const auto& [line, ended] : lines) {
    joined += line;
    if (ended) joined += '\n';
  }
  DTRAIN_CHECK(joined == text);
  DTRAIN_CHECK(lines == Split(text, std::max<size_t>(1, text.size())));
  return 0;
}
