// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/fusion.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "runtime/base/result.h"
#include "runtime/base/types.h"

namespace dtrain::runtime {
namespace {

constexpr int32_t kNotReady = std::numeric_limits<int32_t>::max();
constexpr size_t kJoinedAt = kOfferWords - 1;
constexpr int64_t kJoined = std::numeric_limits<int64_t>::min();

uint64_t Mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 29);
}

uint64_t HashOf(uint64_t before, const Collective& what) {
  uint64_t hash = Mix(before, static_cast<uint64_t>(what.kind));
  hash = Mix(hash, static_cast<uint64_t>(what.type));
  hash = Mix(hash, static_cast<uint64_t>(what.op));
  hash = Mix(hash, what.name);
  return Mix(hash, what.count);
}

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

std::string StatementText(const int64_t* words) {
  if (words[0] == kJoined) return "dtrain_join, which goes along with sums and averages only";
  char name[(kStatementWords - kDescriptionWords) * sizeof(int64_t) + 1] = "";
  std::memcpy(name, words + kDescriptionWords, sizeof(name) - 1);
  const auto known = UnpackDescription(words);
  const std::string what = known ? Describe(*known) : "an unknown collective";
  return name[0] == '\0' ? what : what + " \"" + Printable(name) + "\"";
}

}  // namespace

std::vector<int32_t> MakeOffer(const std::vector<Collective>& ready) {
  std::vector<int32_t> offer(kOfferWords, kNotReady);
  const size_t count = std::min(ready.size(), kMostAgreed);
  offer[0] = static_cast<int32_t>(count);
  uint64_t hash = 0;
  for (size_t i = 0; i < count; ++i) {
    hash = HashOf(hash, ready[i]);
    // The lowest complement is the complement of the highest: equal ends mean equal hashes.
    const auto word = static_cast<int32_t>(static_cast<uint32_t>(hash >> 32));
    offer[1 + i] = word;
    offer[1 + kMostAgreed + i] = ~word;
  }
  return offer;
}

std::vector<int32_t> MakeJoinedOffer() {
  std::vector<int32_t> offer(kOfferWords, kNotReady);
  offer[kJoinedAt] = 0;
  return offer;
}

Agreement ReadOffers(const std::vector<int32_t>& lowest) {
  Agreement agreement;
  agreement.joined = lowest[kJoinedAt] == 0;
  agreement.all_joined = agreement.joined && lowest[0] == kNotReady;
  if (agreement.all_joined) return agreement;
  agreement.count = static_cast<size_t>(std::max(lowest[0], 0));
  for (size_t i = 0; i < agreement.count; ++i) {
    if (lowest[1 + i] == ~lowest[1 + kMostAgreed + i]) continue;
    agreement.differs = i;
    break;
  }
  return agreement;
}

std::vector<std::vector<size_t>> PlanBatches(const std::vector<Collective>& agreed,
                                             size_t threshold) {
  struct Open {
    dtrain_type type;
    dtrain_op op;
    size_t bytes;
    size_t batch;
  };
  std::vector<std::vector<size_t>> batches;
  std::vector<Open> open;
  for (size_t i = 0; i < agreed.size(); ++i) {
    const Collective& what = agreed[i];
    const size_t bytes = what.count * ElementSize(what.type);
    if (threshold == 0 || bytes > std::min(threshold, kLargestFused)) {
      batches.push_back({i});
      continue;
    }
    auto found = std::find_if(open.begin(), open.end(), [&](const Open& candidate) {
      return candidate.type == what.type && candidate.op == what.op;
    });
    if (found == open.end()) {
      open.push_back({what.type, what.op, 0, batches.size()});
      batches.emplace_back();
      found = open.end() - 1;
    } else if (found->bytes + bytes > threshold) {
      *found = {what.type, what.op, 0, batches.size()};
      batches.emplace_back();
    }
    found->bytes += bytes;
    batches[found->batch].push_back(i);
  }
  return batches;
}

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

void PackStatement(const Collective& what, std::string_view name, int64_t* words) {
  constexpr size_t kRoom = (kStatementWords - kDescriptionWords) * sizeof(int64_t);
  PackDescription(what, words);
  std::string text(name);
  if (text.size() > kRoom) text = "..." + text.substr(text.size() - kRoom + 3);
  text.resize(kRoom);
  std::memcpy(words + kDescriptionWords, text.data(), kRoom);
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
