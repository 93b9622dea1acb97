// SPDX-License-Identifier: Apache-2.0
#include "common/base/text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace dtrain {
namespace {

// Of the three bytes of a character: U+202A to U+202E, U+2066 to U+2069.
bool TurnsTextAround(uint8_t first, uint8_t second, uint8_t third) {
  return first == 0xE2 && ((second == 0x80 && third >= 0xAA && third <= 0xAE) ||
                           (second == 0x81 && third >= 0xA6 && third <= 0xA9));
}

// Length of the valid UTF-8 sequence at the front, 0 when there is none. C1 controls
// (U+0080..U+009F) and characters that turn text around count as invalid: terminals act on them.
size_t Utf8Length(absl::string_view s) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  size_t n = lead >= 0xF0 && lead <= 0xF4  ? 4
             : lead >= 0xE0 && lead < 0xF0 ? 3
             : lead >= 0xC2 && lead < 0xE0 ? 2
                                           : 0;
  if (n == 0 || s.size() < n) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F) ||
      (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F) ||
      (lead == 0xC2 && byte(1) < 0xA0) || (n == 3 && TurnsTextAround(lead, byte(1), byte(2)))) {
    return 0;
  }
  return n;
}

// Letters to insert, drop, replace or swap with their neighbour to get from `a` to `b`.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

std::string Escape(absl::string_view text, size_t limit) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  size_t i = 0;
  while (i < text.size()) {
    if (out.size() >= limit) return out + "...";
    char c = text[i];
    auto u = static_cast<uint8_t>(c);
    if (c == '\n') {
      out += "\\n";
      ++i;
      continue;
    }
    if (c == '\t') {
      out += "\\t";
      ++i;
      continue;
    }
    if (c == '\r') {
      out += "\\r";
      ++i;
      continue;
    }
    if (c == '\\') {
      out += "\\\\";
      ++i;
      continue;
    }
    size_t n = (u < 0x20 || u == 0x7F) ? 0 : Utf8Length(text.substr(i));
    if (n == 0) {
      out += "\\x";
      out += kHex[u >> 4];
      out += kHex[u & 15];
      ++i;
    } else {
      absl::StrAppend(&out, text.substr(i, n));
      i += n;
    }
  }
  return out;
}

std::string WithoutColours(absl::string_view line) {
  std::string out;
  while (!line.empty()) {
    const size_t begin = std::min(line.find("\033["), line.size());
    absl::StrAppend(&out, line.substr(0, begin));
    line.remove_prefix(begin);
    const size_t end = line.find_first_not_of("0123456789;:", std::min<size_t>(2, line.size()));
    if (end != absl::string_view::npos && (line[end] == 'm' || line[end] == 'K')) {
      line.remove_prefix(end + 1);
    } else if (!line.empty()) {
      absl::StrAppend(&out, line.substr(0, 1));
      line.remove_prefix(1);
    }
  }
  return out;
}

std::string DidYouMean(absl::string_view word, const std::vector<std::string>& known,
                       absl::string_view before) {
  if (word.size() < 2 || word.size() > 64) return "";
  const std::string* best = nullptr;
  size_t best_distance = word.size() / 3 + 1;  // a word of 2 letters may have one wrong
  for (const std::string& name : known) {
    const size_t distance = EditDistance(word, name);
    if (distance < best_distance || (distance == best_distance && best == nullptr)) {
      best = &name;
      best_distance = distance;
    }
  }
  return best == nullptr ? "" : absl::StrCat("; did you mean ", before, *best, "?");
}

std::string Count(size_t n, absl::string_view noun) {
  return absl::StrCat(n, " ", noun, n == 1 ? "" : "s");
}

}  // namespace dtrain
