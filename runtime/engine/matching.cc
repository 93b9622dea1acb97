// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/matching.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <unordered_set>

namespace dtrain::runtime {
namespace {

constexpr int32_t kNotReady = std::numeric_limits<int32_t>::max();
constexpr size_t kHashesAt = 1, kComplementsAt = kHashesAt + kMostOffered;
constexpr size_t kMostAt = kOfferWords - 2, kJoinedAt = kOfferWords - 1;

constexpr int64_t kJoinedBit = 1, kStuckBit = 2, kOverdueBit = 4;

uint64_t Mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 29);
}

uint64_t HashOf(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return Mix(hash, text.size());
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

std::vector<int32_t> MakeOffer(std::span<const Pending> pending) {
  std::vector<int32_t> offer(kOfferWords, kNotReady);
  const size_t count = std::min(pending.size(), kMostOffered);
  offer[0] = static_cast<int32_t>(count);
  uint64_t hash = 0;
  for (size_t i = 0; i < count; ++i) {
    hash = Mix(Mix(Mix(hash, pending[i].key), pending[i].signature), pending[i].registered);
    hash = Mix(hash, static_cast<uint64_t>(pending[i].via));
    // The lowest complement is the complement of the highest: equal ends mean equal hashes.
    const auto word = static_cast<int32_t>(static_cast<uint32_t>(hash >> 32));
    offer[kHashesAt + i] = word;
    offer[kComplementsAt + i] = ~word;
  }
  offer[kMostAt] = ~static_cast<int32_t>(std::min<size_t>(pending.size(), kNotReady - 1));
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
  const auto ready = static_cast<size_t>(std::clamp<int32_t>(lowest[0], 0, kMostOffered));
  while (agreement.count < ready &&
         lowest[kHashesAt + agreement.count] == ~lowest[kComplementsAt + agreement.count]) {
    ++agreement.count;
  }
  agreement.differs = agreement.count == 0;
  agreement.most = static_cast<size_t>(std::max(~lowest[kMostAt], 0));
  return agreement;
}

std::vector<int32_t> MakeCall(const Pending& pending) {
  const uint64_t hash = Mix(Mix(0, pending.key), pending.signature);
  const auto high = static_cast<int32_t>(static_cast<uint32_t>(hash >> 32));
  const auto low = static_cast<int32_t>(static_cast<uint32_t>(hash));
  const uint64_t folded = pending.registered ^ (pending.registered >> 32);
  const auto registered = static_cast<int32_t>(static_cast<uint32_t>(folded));
  const auto via = static_cast<int32_t>(pending.via);
  return {high, ~high, low, ~low, via, ~via, registered, ~registered};
}

std::optional<Via> ReadCalls(const std::vector<int32_t>& lowest) {
  if (lowest[0] != ~lowest[1] || lowest[2] != ~lowest[3]) return std::nullopt;
  const bool alike = lowest[4] == ~lowest[5] && lowest[6] == ~lowest[7] && IsVia(lowest[4]);
  return alike ? static_cast<Via>(lowest[4]) : Via::kStaged;
}

std::vector<int64_t> PackList(const PendingList& list, size_t room) {
  std::vector<int64_t> words(ListWords(std::max(room, list.pending.size())));
  words[0] = (list.joined ? kJoinedBit : 0) | (list.stuck ? kStuckBit : 0) |
             (list.overdue ? kOverdueBit : 0);
  words[1] = static_cast<int64_t>(list.pending.size());
  for (size_t i = 0; i < list.pending.size(); ++i) {
    int64_t* const at = &words[ListWords(i)];
    at[0] = static_cast<int64_t>(list.pending[i].key);
    at[1] = static_cast<int64_t>(list.pending[i].signature);
    at[2] = static_cast<int64_t>(list.pending[i].registered);
    at[3] = static_cast<int64_t>(list.pending[i].via);
  }
  return words;
}

std::optional<PendingList> UnpackList(std::span<const int64_t> words) {
  if (words.size() < ListWords(0) || words[0] < 0 || words[1] < 0) return std::nullopt;
  const auto count = static_cast<uint64_t>(words[1]);
  if (count > (words.size() - ListWords(0)) / 4) return std::nullopt;
  PendingList list;
  list.joined = (words[0] & kJoinedBit) != 0;
  list.stuck = (words[0] & kStuckBit) != 0;
  list.overdue = (words[0] & kOverdueBit) != 0;
  if (list.joined != (count == 0)) return std::nullopt;  // nobody else comes without a collective
  std::unordered_set<uint64_t> keys;  // each waits once: `Match` counts ranks by it
  for (size_t i = 0; i < count; ++i) {
    const int64_t* const at = &words[ListWords(i)];
    if (!IsVia(at[3]) || !keys.insert(static_cast<uint64_t>(at[0])).second) return std::nullopt;
    list.pending.push_back({static_cast<uint64_t>(at[0]), static_cast<uint64_t>(at[1]),
                            static_cast<uint64_t>(at[2]), static_cast<Via>(at[3])});
  }
  return list;
}

Matches Match(const std::vector<PendingList>& lists) {
  struct Seen {
    size_t ranks = 0;
    uint64_t signature = 0, registered = 0;
    Via via = Via::kHost;
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
      seen.differs |= seen.ranks > 0 && seen.signature != entry.signature;
      const bool alike = seen.via == entry.via && seen.registered == entry.registered;
      seen.via = seen.ranks == 0 || alike ? entry.via : Via::kStaged;
      seen.signature = entry.signature;
      seen.registered = entry.registered;
      ++seen.ranks;
    }
  }
  for (size_t i = 0; first != nullptr && i < first->pending.size(); ++i) {
    const uint64_t key = first->pending[i].key;
    const Seen& seen = all[key];
    if (seen.ranks != ranks) continue;
    (seen.differs ? matches.differing : matches.common).push_back(key);
    if (!seen.differs) matches.vias.push_back(seen.via);
  }
  const bool any = !matches.common.empty() || !matches.differing.empty();
  matches.hopeless &= !any;
  matches.overdue &= !any;
  return matches;
}

}  // namespace dtrain::runtime
