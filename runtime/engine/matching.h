// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/collective.h"
#include "runtime/base/device.h"
#include "runtime/base/outline.h"

namespace dtrain::runtime {

// Which of the pending collectives all ranks of a group have, in whatever order and at whatever
// time each of them made them. Pure.
//
// Collectives are matched by their key, which stands for the name or, without one, for the position
// among those without a name. What must then be the same on all ranks is in the signature.
//
// What they use of registered memory, and where their buffers are, need not be: such collectives
// match, and go by Via::kStaged.
struct Pending {
  uint64_t key = 0;
  uint64_t signature = 0;
  uint64_t registered = 0;  // DeviceCommunicator::RegisteredUse
  Via via = Via::kHost;
  Outline outline{};  // for ranks in dtrain_join, and for error texts
};

// Of the collective called `name`; of the `ordinal`-th of the group's without one when it is empty.
uint64_t KeyOf(std::string_view name, uint64_t ordinal);
// Kind, type, operation, root and count, and the caller's own text on its arrays.
uint64_t SignatureOf(const Collective& what, std::string_view shape);

// ---- The common case: all ranks have made them in the same order ----
//
// Each rank offers how many it has, and a hash of the first, the first two, and so on. One
// all-reduce with MIN over all offers tells everybody how many are ready everywhere, and whether
// they are the same.
// A blocking collective is an offer of one: so few words need no buffers of their own.
constexpr size_t kMostOffered = 128;                               // in one offer
constexpr size_t OfferWords(size_t most) { return 3 + 2 * most; }  // int32

// Of the first `most` of `pending`.
std::vector<int32_t> MakeOffer(std::span<const Pending> pending, size_t most = kMostOffered);
// Of a rank that is in dtrain_join: it has no operations, and goes along with any.
std::vector<int32_t> MakeJoinedOffer();

struct Agreement {
  size_t count = 0;         // from the front, so many are ready and the same on all ranks
  bool differs = false;     // not even the first is the same: the ranks must list what they have
  size_t most = 0;          // then: how many the rank with the most has
  bool joined = false;      // some rank is in dtrain_join
  bool all_joined = false;  // every rank is: there are no operations
};
// From the MIN over all ranks' offers. The same on every rank.
Agreement ReadOffers(const std::vector<int32_t>& lowest);

// ---- Otherwise, and for ranks in dtrain_join: each rank lists what it has pending ----

struct PendingList {
  bool joined = false;   // in dtrain_join: nothing pending
  bool stuck = false;    // waits for one of them, and makes no other before that is done
  bool overdue = false;  // one of them has been pending for the time limit of a collective
  std::vector<Pending> pending;
  std::string name = {}, shape = {};  // the caller's for the first entry, for error texts
};

// A list as int64 words, padded for `room` entries, at least as many as it has. Names and shapes
// that are too long lose their beginning.
constexpr size_t kNameWords = 16, kShapeWords = 8;
constexpr size_t kRowWords = 4 + sizeof(Outline) / sizeof(int64_t);
constexpr size_t ListWords(size_t room) { return 2 + kNameWords + kShapeWords + kRowWords * room; }
std::vector<int64_t> PackList(const PendingList& list, size_t room);
// nullopt when no rank of this version says so.
std::optional<PendingList> UnpackList(std::span<const int64_t> words);

struct Matches {
  // To run, in the order of the first rank that has not joined; `via` is what all ranks use.
  std::vector<Pending> common;
  // Keys that all ranks have pending, but with different collectives, or with one in which a rank
  // in dtrain_join cannot take part.
  std::vector<uint64_t> differing;
  bool hopeless = false;  // neither, and none can come: every rank waits for one of its own
  bool overdue = false;   // neither, and some rank has waited for too long
};
// `lists` by rank. The same on every rank.
Matches Match(const std::vector<PendingList>& lists);

}  // namespace dtrain::runtime
