// SPDX-License-Identifier: Apache-2.0
// docs/operations.md explains each line that an agent or a shepherd writes to the journal.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/support/paths.h"

namespace dtrain {
namespace {

std::string Contents(const std::filesystem::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The longest piece of text in the call that begins at `call`, in one literal or in several that
// the compiler joins; empty when the text comes from elsewhere.
std::string LongestLiteral(absl::string_view call) {
  std::string longest, piece;
  bool inside = false;
  int open = 0;
  for (size_t i = 0; i < call.size(); ++i) {
    const char c = call[i];
    if (inside) {
      if (c == '"') {
        inside = false;
      } else {
        piece += c == '\\' && i + 1 < call.size() ? call[++i] : c;
      }
      continue;
    }
    if (c == '"') {
      inside = true;
      continue;
    }
    if (absl::string_view(" \n").find(c) != absl::string_view::npos) continue;
    if (piece.size() > longest.size()) longest = piece;
    piece.clear();
    open += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (c == ')' && open == 0) break;
  }
  // A comma may follow for the next part, and a space for what is put in.
  const size_t begin = longest.find_first_not_of(" :,");
  return begin == longest.npos
             ? ""
             : longest.substr(begin, longest.find_last_not_of(" :,(") + 1 - begin);
}

struct Line {
  std::string file;
  std::string text;
};

std::vector<Line> LogLines() {
  std::vector<Line> out;
  for (const char* folder : {"agent", "common"}) {
    const std::filesystem::path root = SourcePath(folder);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cc" && extension != ".h") continue;
      const std::string text = Contents(entry.path());
      for (const char* level : {"log::Info(", "log::Warn(", "log::Error("}) {
        for (size_t at = text.find(level); at != text.npos; at = text.find(level, at + 1)) {
          std::string literal = LongestLiteral(absl::string_view(text).substr(at));
          if (!literal.empty()) out.push_back({entry.path().string(), std::move(literal)});
        }
      }
    }
  }
  return out;
}

TEST(LogLinesTest, AreFound) {
  EXPECT_EQ(LongestLiteral(
                "log::Warn(absl::StrCat(\"job \", id, \": it is \"\n \"gone: \", why)); x(\"yz\")"),
            "it is gone");
  EXPECT_EQ(LongestLiteral("log::Warn(status.message()); log::Warn(\"another\")"), "");
  EXPECT_GT(LogLines().size(), 25u);
}

TEST(LogLinesTest, TheOperationsPageExplainsEachOfThem) {
  std::string page = Contents(SourcePath("docs/operations.md"));
  std::replace(page.begin(), page.end(), '\n', ' ');
  for (const Line& line : LogLines()) {
    EXPECT_NE(page.find(line.text), page.npos) << line.file << " says \"" << line.text << "\"";
  }
}

}  // namespace
}  // namespace dtrain
