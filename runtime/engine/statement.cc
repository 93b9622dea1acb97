// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/statement.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/base/result.h"

namespace dtrain::runtime {
namespace {

constexpr int64_t kJoined = std::numeric_limits<int64_t>::min();

void PackText(std::string_view whole, size_t room, int64_t* words) {
  room *= sizeof(int64_t);
  std::string text(whole);
  if (text.size() > room) text = "..." + text.substr(text.size() - room + 3);
  text.resize(room);
  std::memcpy(words, text.data(), room);
}

std::string UnpackText(const int64_t* words, size_t room) {
  std::string text(reinterpret_cast<const char*>(words), room * sizeof(int64_t));
  return Printable(text.substr(0, text.find('\0')));
}

std::string StatementText(const int64_t* words) {
  if (words[0] == kJoined) return "dtrain_join, which works with sums and averages only";
  Outline outline;
  std::memcpy(&outline, words, sizeof(outline));
  std::string text = Describe(outline);
  words += kOutlineWords;
  const std::string name = UnpackText(words, kNameWords);
  // Its first word tells shapes apart that were cut.
  const std::string shape = UnpackText(words + kNameWords + 1, kShapeWords - 1);
  if (shape.starts_with(kRowsOf)) {
    text = text.substr(0, text.find(" of ")) + " of any number of " + shape;
  } else if (!shape.empty()) {
    text += " of shape " + shape;
  }
  if (!name.empty()) text += " \"" + name + "\"";
  return text;
}

}  // namespace

void PackOutline(const Collective& what, int64_t* words) {
  Outline outline = OutlineOf(what);
  outline.number = 0;
  std::memcpy(words, &outline, sizeof(outline));
}

std::optional<Collective> UnpackOutline(const int64_t* words) {
  Outline outline;
  std::memcpy(&outline, words, sizeof(outline));
  return CollectiveOf(outline);
}

void PackJoined(int64_t* words) { std::fill_n(words, kOutlineWords, kJoined); }

void PackStatement(const Collective& what, std::string_view name, std::string_view shape,
                   int64_t* words) {
  PackOutline(what, words);
  words += kOutlineWords;
  PackText(name, kNameWords, words);
  words += kNameWords;
  words[0] = NameHash(shape);
  PackText(shape, kShapeWords - 1, words + 1);
}

std::string CompareStatements(const std::vector<int64_t>& statements,
                              const std::vector<int>& names) {
  // Ranks with the same statement; the same text may stand for two names that were cut.
  std::vector<const int64_t*> different;
  std::vector<Party> parties;
  for (size_t r = 0; r * kStatementWords < statements.size(); ++r) {
    const int64_t* words = &statements[r * kStatementWords];
    const auto found = std::find_if(different.begin(), different.end(), [&](const int64_t* other) {
      return std::equal(words, words + kStatementWords, other);
    });
    const auto at = static_cast<size_t>(found - different.begin());
    if (found == different.end()) {
      different.push_back(words);
      parties.push_back({{}, StatementText(words)});
    }
    parties[at].ranks.push_back(names.empty() ? static_cast<int>(r) : names[r]);
  }
  return DescribeDisagreement(parties);
}

}  // namespace dtrain::runtime
