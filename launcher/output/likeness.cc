// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/likeness.h"

#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace dtrain::output {
namespace {

// Behind which a number is that of one rank, in any case: "rank 3", "[Rank 3]", "rank3", "pid=17",
// "cuda:1", "Process 3 terminated".
constexpr absl::string_view kWords[] = {"rank", "pid",    "process", "fd",     "port",
                                        "cuda", "device", "gpu",     "thread", "localhost"};
constexpr size_t kMostBetween = 2;  // of a word and its number
constexpr absl::string_view kBetween = " :=#";

size_t Digits(absl::string_view text) {
  size_t n = 0;
  while (n < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[n]))) ++n;
  return n;
}

// All of these: how long what stands at the beginning of `text` is; 0: something else.
size_t Hexadecimal(absl::string_view text) {
  if (!absl::StartsWith(text, "0x")) return 0;
  size_t n = 2;
  while (n < text.size() && absl::ascii_isxdigit(static_cast<unsigned char>(text[n]))) ++n;
  return n > 2 ? n : 0;
}

// ":4711"
size_t Port(absl::string_view text) {
  if (!absl::StartsWith(text, ":")) return 0;
  const size_t n = Digits(text.substr(1));
  return n == 0 ? 0 : n + 1;
}

// "10.0.0.2", with a port or without
size_t Dotted(absl::string_view text) {
  size_t at = 0;
  for (int part = 0; part < 4; ++part) {
    if (part > 0 && (at >= text.size() || text[at++] != '.')) return 0;
    const size_t n = Digits(text.substr(at));
    if (n == 0 || n > 3) return 0;
    at += n;
  }
  if (at < text.size() && text[at] == '.' && Digits(text.substr(at + 1)) > 0)
    return 0;  // a version
  return at + Port(text.substr(at));
}

// "[::1]:4711", "[10.0.0.2]:1", "[node1]:2", and "[10.0.0.2]"
size_t Bracketed(absl::string_view text) {
  if (!absl::StartsWith(text, "[")) return 0;
  const size_t end = text.find_first_of("]\n ");
  if (end == absl::string_view::npos || text[end] != ']' || end == 1) return 0;
  if (const size_t port = Port(text.substr(end + 1))) return end + 1 + port;
  return Dotted(text.substr(1)) == end - 1 ? end + 1 : 0;
}

// A word and its number, or several: how long both are, and where the number begins.
size_t Numbered(absl::string_view text, size_t* number) {
  for (const absl::string_view word : kWords) {
    if (!absl::StartsWithIgnoreCase(text, word)) continue;
    size_t at = word.size();
    if (absl::StartsWith(text.substr(at), "(s)")) {
      at += 3;
    } else if (at < text.size() && (text[at] == 's' || text[at] == 'S')) {
      ++at;
    }
    size_t between = 0;
    while (at < text.size() && between < kMostBetween &&
           kBetween.find(text[at]) != absl::string_view::npos) {
      ++at;
      ++between;
    }
    const size_t digits = Digits(text.substr(at));
    if (digits == 0) return 0;
    *number = at;
    at += digits;
    while (absl::StartsWith(text.substr(at), ", ") && Digits(text.substr(at + 2)) > 0) {
      at += 2 + Digits(text.substr(at + 2));
    }
    return at;
  }
  return 0;
}

}  // namespace

std::string Likeness(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  char before = ' ';
  while (!text.empty()) {
    const bool in_number = absl::ascii_isalnum(static_cast<unsigned char>(before)) || before == '.';
    const bool in_word = absl::ascii_isalpha(static_cast<unsigned char>(before));
    size_t kept = 0;  // of what is found, before the '#'
    size_t found = 0;
    if (!in_number) found = Hexadecimal(text);
    if (found == 0 && !in_number) found = Dotted(text);
    if (found == 0) found = Bracketed(text);
    if (found == 0 && !in_word) found = Numbered(text, &kept);
    if (found == 0) {
      found = kept = 1;
      out.push_back(text[0]);
    } else {
      out.append(text.data(), kept);
      out.push_back('#');
    }
    before = text[found - 1];
    text.remove_prefix(found);
  }
  return out;
}

}  // namespace dtrain::output
