// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/statement.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "runtime/base/result.h"
#include "runtime/base/types.h"

namespace dtrain::runtime {
namespace {

constexpr int64_t kJoined = std::numeric_limits<int64_t>::min();

std::string RankList(const std::vector<size_t>& ranks) {
  constexpr size_t kMostNamed = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(ranks[i]);
  }
  if (ranks.size() > kMostNamed) {
    text += " and " + std::to_string(ranks.size() - kMostNamed) + " more";
  }
  return text;
}

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
  if (words[0] == kJoined) return "dtrain_join, which goes along with sums and averages only";
  const auto known = UnpackDescription(words);
  std::string text = known ? Describe(*known) : "an unknown collective";
  words += kDescriptionWords;
  const std::string name = UnpackText(words, kNameWords);
  // Its first word tells shapes apart that were cut.
  const std::string shape = UnpackText(words + kNameWords + 1, kShapeWords - 1);
  if (!shape.empty()) text += " of shape " + shape;
  if (!name.empty()) text += " \"" + name + "\"";
  return text;
}

}  // namespace

void PackDescription(const Collective& what, int64_t* words) {
  words[0] = static_cast<int64_t>(what.kind);
  words[1] = what.type;
  words[2] = what.op;
  words[3] = what.root;
  words[4] = static_cast<int64_t>(what.count);
  words[5] = what.name;
}

std::optional<Collective> UnpackDescription(const int64_t* words) {
  constexpr int64_t kMostElements = std::numeric_limits<int64_t>::max() / 16;
  const bool known = words[0] >= 0 && words[0] <= static_cast<int64_t>(Collective::Kind::kReduce) &&
                     IsType(words[1]) && IsOp(words[2]) && words[4] >= 0 &&
                     words[4] <= kMostElements;
  if (!known) return std::nullopt;
  Collective what;
  what.kind = static_cast<Collective::Kind>(words[0]);
  what.type = static_cast<dtrain_type>(words[1]);
  what.op = static_cast<dtrain_op>(words[2]);
  what.root = static_cast<int>(words[3]);
  what.count = static_cast<size_t>(words[4]);
  what.name = static_cast<uint32_t>(words[5]);
  return what;
}

void PackJoined(int64_t* words) { std::fill_n(words, kDescriptionWords, kJoined); }

void PackStatement(const Collective& what, std::string_view name, std::string_view shape,
                   int64_t* words) {
  PackDescription(what, words);
  words += kDescriptionWords;
  PackText(name, kNameWords, words);
  words += kNameWords;
  words[0] = NameHash(shape);
  PackText(shape, kShapeWords - 1, words + 1);
}

std::string DescribeDisagreement(const std::vector<int64_t>& statements) {
  constexpr size_t kMostCamps = 6;  // a text of all of them would not fit
  // Ranks with the same statement; the same text may stand for two names that were cut.
  std::vector<std::pair<const int64_t*, std::vector<size_t>>> camps;
  for (size_t r = 0; r * kStatementWords < statements.size(); ++r) {
    const int64_t* words = &statements[r * kStatementWords];
    auto found = std::find_if(camps.begin(), camps.end(), [&](const auto& camp) {
      return std::equal(words, words + kStatementWords, camp.first);
    });
    if (found == camps.end()) found = camps.insert(camps.end(), {words, {}});
    found->second.push_back(r);
  }
  std::string text = "the ranks do not ask for the same thing: ";
  for (size_t i = 0; i < std::min(camps.size(), kMostCamps); ++i) {
    if (i > 0) text += "; ";
    text += RankList(camps[i].second) + " for " + StatementText(camps[i].first);
  }
  if (camps.size() > kMostCamps) text += "; and others";
  return text;
}

}  // namespace dtrain::runtime
