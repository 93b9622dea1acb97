// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/terminal_text.h"

#include <algorithm>
#include <cstddef>

namespace dtrain::output {
namespace {

constexpr absl::string_view kNoColour = "\033[0m";

// Control bytes, DEL, and what may be a C1 control: on its own in an 8-bit terminal, or as the
// second byte of U+0080 to U+009F. Bytes within other UTF-8 characters are among them.
bool NeedsCare(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && byte != '\t') || (byte >= 0x7f && byte < 0xa0);
}

// Looks at every byte without a branch, which the compiler makes vector code of.
bool IsPlain(absl::string_view text) {
  unsigned care = 0;
  for (char c : text) care |= NeedsCare(c) ? 1u : 0u;
  return care == 0;
}

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// The length of the harmless sequence that `text`, which starts with ESC, begins with; 0: none.
size_t HarmlessSequence(absl::string_view text) {
  if (text.size() < 3 || text[1] != '[') return 0;
  // Digits alone: ESC [ > 4 m, say, would change what the user's keys send.
  const size_t end = text.find_first_not_of("0123456789;:", 2);
  if (end == absl::string_view::npos) return 0;
  if (text[end] == 'm') return end + 1;
  const absl::string_view argument = text.substr(2, end - 2);
  return text[end] == 'K' && (argument.empty() || argument == "0") ? end + 1 : 0;
}

class Writer {
 public:
  Writer(absl::string_view prefix, std::string& out) : prefix_(prefix), out_(out) {
    Append(prefix_);
  }
  ~Writer() { EndColour(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Takes a piece from the beginning of `rest`, and tells how long it was.
  size_t Take(absl::string_view rest) {
    if (const size_t plain = PlainLength(rest); plain > 0) return Append(rest.substr(0, plain));
    if (rest[0] == '\r') return Return(rest);
    if (rest[0] == '\033') {
      const size_t length = HarmlessSequence(rest);
      if (length > 0) {
        coloured_ = coloured_ || rest[length - 1] == 'm';
        return Append(rest.substr(0, length));
      }
    } else if (const size_t length = CharacterLength(rest); length > 0) {
      return Append(rest.substr(0, length));
    }
    AppendEscaped(rest[0], out_);
    return 1;
  }

 private:
  // ASCII only, so that a character is looked at as a whole.
  static size_t PlainLength(absl::string_view text) {
    const auto* end = std::find_if(text.begin(), text.end(), [](char c) {
      return NeedsCare(c) || (static_cast<unsigned char>(c) & 0x80) != 0;
    });
    return static_cast<size_t>(end - text.begin());
  }

  size_t Return(absl::string_view rest) {
    const size_t length = std::min(rest.find_first_not_of('\r'), rest.size());
    EndColour();
    out_.push_back('\r');
    // At the end of a line nothing comes that could stand in the prefix's place.
    if (length < rest.size()) Append(prefix_);
    return length;
  }

  size_t Append(absl::string_view text) {
    out_.append(text.data(), text.size());
    return text.size();
  }

  void EndColour() {
    if (coloured_) Append(kNoColour);
    coloured_ = false;
  }

  const absl::string_view prefix_;
  std::string& out_;
  bool coloured_ = false;
};

}  // namespace

size_t CharacterLength(absl::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = lead >= 0xc2 && lead < 0xe0   ? 2
                        : lead >= 0xe0 && lead < 0xf0 ? 3
                        : lead >= 0xf0 && lead < 0xf5 ? 4
                                                      : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (!IsContinuation(text[i])) return 0;
  }
  const auto second = static_cast<unsigned char>(text[1]);
  if (lead == 0xc2 && second < 0xa0) return 0;
  // U+202A to U+202E and U+2066 to U+2069 turn around what stands behind them.
  const auto third = length > 2 ? static_cast<unsigned char>(text[2]) : 0;
  if (lead == 0xe2 && ((second == 0x80 && third >= 0xaa && third <= 0xae) ||
                       (second == 0x81 && third >= 0xa6 && third <= 0xa9))) {
    return 0;
  }
  // Longer than need be: some terminals decode these to control characters.
  if ((lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90)) return 0;
  return length;
}

void AppendEscaped(char c, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  const char shown[] = {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
  out.append(shown, sizeof(shown));
}

bool IsCutCharacter(absl::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t length = lead < 0xc2 || lead > 0xf4 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  return text.size() < length && std::all_of(text.begin() + 1, text.end(), IsContinuation);
}

size_t AppendForOthers(absl::string_view text, std::string& out) {
  while (!text.empty()) {
    const char c = text[0];
    size_t length = 1;
    if (c == '\n' || c == '\r' || !NeedsCare(c)) {
      if ((static_cast<unsigned char>(c) & 0x80) != 0) length = CharacterLength(text);
    } else {
      length = 0;
    }
    if (length == 0 && IsCutCharacter(text)) return text.size();
    if (length == 0) {
      AppendEscaped(c, out);
      length = 1;
    } else {
      out.append(text.data(), length);
    }
    text.remove_prefix(length);
  }
  return 0;
}

void AppendForTerminal(absl::string_view line, absl::string_view prefix, std::string& out) {
  if (IsPlain(line)) {
    out.append(prefix.data(), prefix.size());
    out.append(line.data(), line.size());
    return;
  }
  Writer writer(prefix, out);
  while (!line.empty()) line.remove_prefix(writer.Take(line));
}

}  // namespace dtrain::output
