// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/matching.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "runtime/base/result.h"

namespace dtrain::runtime {
namespace {

constexpr int32_t kNotReady = std::numeric_limits<int32_t>::max();
// Of an offer. Each hash is followed by its complement.
constexpr size_t kCountAt = 0, kMostAt = 1, kJoinedAt = 2, kHashesAt = 3;

// Of a list.
constexpr int64_t kJoinedBit = 1, kStuckBit = 2, kOverdueBit = 4;
constexpr size_t kNameAt = 2, kShapeAt = kNameAt + kNameWords;

uint64_t Mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 29);
}

uint64_t HashOf(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return Mix(hash, text.size());
}

void PackText(std::string text, size_t room, int64_t* words) {
  room *= sizeof(int64_t);
  if (text.size() > room) text = "..." + text.substr(text.size() - room + 3);
  std::memcpy(words, text.data(), text.size());
}

std::string UnpackText(const int64_t* words, size_t room) {
  const std::string text(reinterpret_cast<const char*>(words), room * sizeof(int64_t));
  return Printable(text.substr(0, text.find('\0')));
}

bool MayBeJoined(const Outline& outline) {
  const auto what = CollectiveOf(outline);
  return what && what->kind == Collective::Kind::kAllreduce &&
         (what->op == DTRAIN_SUM || what->op == DTRAIN_AVG);
}

}  // namespace

uint64_t KeyOf(std::string_view name, uint64_t ordinal) {
  // Those with and without a name must not meet: one has the highest bit, the other has not.
  constexpr uint64_t kNamed = uint64_t{1} << 63;
  if (name.empty()) return ordinal & ~kNamed;
  return HashOf(name) | kNamed;
}

uint64_t SignatureOf(const Collective& what, std::string_view shape) {
  uint64_t hash = Mix(0, static_cast<uint64_t>(what.kind));
  hash = Mix(hash, static_cast<uint64_t>(what.type));
  hash = Mix(hash, static_cast<uint64_t>(what.op));
  hash = Mix(hash, static_cast<uint64_t>(what.root));
  return Mix(Mix(hash, what.count), HashOf(shape));
}

std::vector<int32_t> MakeOffer(std::span<const Pending> pending, size_t most) {
  std::vector<int32_t> offer(OfferWords(most), kNotReady);
  const size_t count = std::min(pending.size(), most);
  offer[kCountAt] = static_cast<int32_t>(count);
  offer[kMostAt] = ~static_cast<int32_t>(std::min<size_t>(pending.size(), kNotReady - 1));
  uint64_t hash = 0;
  for (size_t i = 0; i < count; ++i) {
    hash = Mix(Mix(Mix(hash, pending[i].key), pending[i].signature), pending[i].registered);
    hash = Mix(hash, static_cast<uint64_t>(pending[i].via));
    // The lowest complement is the complement of the highest: equal ends mean equal hashes.
    const auto word = static_cast<int32_t>(static_cast<uint32_t>(hash >> 32));
    offer[kHashesAt + 2 * i] = word;
    offer[kHashesAt + 2 * i + 1] = ~word;
  }
  return offer;
}

std::vector<int32_t> MakeJoinedOffer() {
  std::vector<int32_t> offer = MakeOffer({});
  offer[kCountAt] = offer[kMostAt] = kNotReady;
  offer[kJoinedAt] = 0;
  return offer;
}

Agreement ReadOffers(const std::vector<int32_t>& lowest) {
  Agreement agreement;
  agreement.joined = lowest[kJoinedAt] == 0;
  agreement.all_joined = agreement.joined && lowest[kCountAt] == kNotReady;
  if (agreement.all_joined) return agreement;
  const auto room = static_cast<int32_t>((lowest.size() - kHashesAt) / 2);
  const auto ready = static_cast<size_t>(std::clamp<int32_t>(lowest[kCountAt], 0, room));
  const auto alike = [&](size_t i) {
    return lowest[kHashesAt + 2 * i] == ~lowest[kHashesAt + 2 * i + 1];
  };
  while (agreement.count < ready && alike(agreement.count)) ++agreement.count;
  agreement.differs = agreement.count == 0;
  agreement.most = static_cast<size_t>(std::max(~lowest[kMostAt], 0));
  return agreement;
}

std::vector<int64_t> PackList(const PendingList& list, size_t room) {
  std::vector<int64_t> words(ListWords(std::max(room, list.pending.size())));
  words[0] = (list.joined ? kJoinedBit : 0) | (list.stuck ? kStuckBit : 0) |
             (list.overdue ? kOverdueBit : 0);
  words[1] = static_cast<int64_t>(list.pending.size());
  PackText(list.name, kNameWords, &words[kNameAt]);
  PackText(list.shape, kShapeWords, &words[kShapeAt]);
  for (size_t i = 0; i < list.pending.size(); ++i) {
    const Pending& pending = list.pending[i];
    int64_t* const at = &words[ListWords(i)];
    at[0] = static_cast<int64_t>(pending.key);
    at[1] = static_cast<int64_t>(pending.signature);
    at[2] = static_cast<int64_t>(pending.registered);
    at[3] = static_cast<int64_t>(pending.via);
    std::memcpy(at + 4, &pending.outline, sizeof(pending.outline));
  }
  return words;
}

std::optional<PendingList> UnpackList(std::span<const int64_t> words) {
  if (words.size() < ListWords(0) || words[0] < 0 || words[1] < 0) return std::nullopt;
  const auto count = static_cast<uint64_t>(words[1]);
  if (count > (words.size() - ListWords(0)) / kRowWords) return std::nullopt;
  PendingList list;
  list.joined = (words[0] & kJoinedBit) != 0;
  list.stuck = (words[0] & kStuckBit) != 0;
  list.overdue = (words[0] & kOverdueBit) != 0;
  if (list.joined != (count == 0)) return std::nullopt;  // nobody else comes without a collective
  list.name = UnpackText(&words[kNameAt], kNameWords);
  list.shape = UnpackText(&words[kShapeAt], kShapeWords);
  std::unordered_set<uint64_t> keys;  // each waits once: `Match` counts ranks by it
  for (size_t i = 0; i < count; ++i) {
    const int64_t* const at = &words[ListWords(i)];
    Pending pending{static_cast<uint64_t>(at[0]), static_cast<uint64_t>(at[1]),
                    static_cast<uint64_t>(at[2]), static_cast<Via>(at[3])};
    std::memcpy(&pending.outline, at + 4, sizeof(pending.outline));
    if (!IsVia(at[3]) || !keys.insert(pending.key).second) return std::nullopt;
    list.pending.push_back(pending);
  }
  return list;
}

Matches Match(const std::vector<PendingList>& lists) {
  struct Seen {
    size_t ranks = 0;
    Pending what;
    bool differs = false;
  };
  std::unordered_map<uint64_t, Seen> all;
  Matches matches;
  matches.hopeless = true;
  const PendingList* first = nullptr;
  size_t ranks = 0;
  for (const PendingList& list : lists) {
    matches.overdue |= list.overdue;
    if (list.joined) continue;
    ++ranks;
    matches.hopeless &= list.stuck;
    if (first == nullptr) first = &list;
    for (const Pending& entry : list.pending) {
      Seen& seen = all[entry.key];
      if (seen.ranks++ == 0) seen.what = entry;
      seen.differs |= seen.what.signature != entry.signature;
      const bool alike = seen.what.via == entry.via && seen.what.registered == entry.registered;
      if (!alike) seen.what.via = Via::kStaged;
    }
  }
  const bool joined = ranks < lists.size();
  for (size_t i = 0; first != nullptr && i < first->pending.size(); ++i) {
    Seen& seen = all[first->pending[i].key];
    if (seen.ranks != ranks) continue;
    if (seen.differs || (joined && !MayBeJoined(seen.what.outline))) {
      matches.differing.push_back(seen.what.key);
      continue;
    }
    if (joined && seen.what.via == Via::kDevice) seen.what.via = Via::kStaged;  // zeros of the host
    matches.common.push_back(seen.what);
  }
  const bool any = !matches.common.empty() || !matches.differing.empty();
  matches.hopeless &= !any;
  matches.overdue &= !any;
  return matches;
}

}  // namespace dtrain::runtime
