// SPDX-License-Identifier: Apache-2.0
// A worker's line, on a terminal that ranks share, does nothing but fill its own line.
#include <string>

#include "launcher/output/terminal_text.h"
#include "tests/fuzz/expect.h"

namespace {

constexpr absl::string_view kPrefix = "[7] ";

bool IsDigitOrSeparator(char c) { return (c >= '0' && c <= '9') || c == ';' || c == ':'; }

// What a terminal would do with `shown`, of which only colours, tabs, erasing to the end of the
// line and returning to its begin are allowed. True when a colour is on at its end.
bool Watch(absl::string_view shown) {
  DTRAIN_CHECK(shown.substr(0, kPrefix.size()) == kPrefix);
  bool coloured = false;
  for (size_t i = 0; i < shown.size(); ++i) {
    const auto byte = static_cast<unsigned char>(shown[i]);
    if (byte == 0x1b) {
      DTRAIN_CHECK(i + 2 < shown.size() && shown[i + 1] == '[');
      size_t end = i + 2;
      while (end < shown.size() && IsDigitOrSeparator(shown[end])) ++end;
      DTRAIN_CHECK(end < shown.size() && (shown[end] == 'm' || shown[end] == 'K'));
      if (shown[end] == 'm') coloured = shown.substr(i, end + 1 - i) != "\x1b[0m";
      i = end;
    } else if (byte == '\r') {
      const absl::string_view rest = shown.substr(i + 1);
      DTRAIN_CHECK(rest.empty() || rest.substr(0, kPrefix.size()) == kPrefix);
    } else {
      DTRAIN_CHECK(byte == '\t' || (byte >= 0x20 && byte != 0x7f));
      // C1 controls in UTF-8.
      const int next = i + 1 < shown.size() ? static_cast<unsigned char>(shown[i + 1]) : 0;
      DTRAIN_CHECK(byte != 0xc2 || next < 0x80 || next >= 0xa0);
    }
  }
  return coloured;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string line(dtrain::fuzz::Text(data, size));
  for (char& c : line) {
    if (c == '\n') c = '\r';  // a line has none
  }
  std::string shown;
  dtrain::output::AppendForTerminal(line, kPrefix, shown);
  DTRAIN_CHECK(!Watch(shown));
  return 0;
}
