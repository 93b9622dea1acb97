// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/collective.h"

namespace dtrain::runtime {

// How ranks whose timing differs agree on which queued all-reduces to run next, and which of them
// travel together. Pure.
//
// Each rank offers what it has ready: how many, and a hash of the first, the first two, and so on.
// One all-reduce with MIN over all offers tells everybody how many are ready everywhere, and
// whether they are the same.
constexpr size_t kMostAgreed = 128;                  // one agreement is about at most so many
constexpr size_t kOfferWords = 2 + 2 * kMostAgreed;  // int32

std::vector<int32_t> MakeOffer(const std::vector<Collective>& ready);
// Of a rank that is in dtrain_join: it has no operations, and goes along with any.
std::vector<int32_t> MakeJoinedOffer();

struct Agreement {
  size_t count = 0;               // operations from the front that all ranks have ready
  std::optional<size_t> differs;  // the first of them that is not the same everywhere
  bool joined = false;            // some rank is in dtrain_join
  bool all_joined = false;        // every rank is: there are no operations
};
// From the MIN over all ranks' offers. The same on every rank.
Agreement ReadOffers(const std::vector<int32_t>& lowest);

// Which of `agreed` travel together: indices into it, in an order that follows from the operations
// alone. Larger ones gain nothing from it and go alone, without being copied; with a threshold of 0
// all do, empty ones too.
constexpr size_t kLargestFused = size_t{512} << 10;  // bytes
std::vector<std::vector<size_t>> PlanBatches(const std::vector<Collective>& agreed,
                                             size_t threshold);

// One operation in words that a collective can carry, to tell ranks in dtrain_join what the others
// do.
constexpr size_t kDescriptionWords = 6;  // int64
void PackDescription(const Collective& what, int64_t* words);
// nullopt when no rank of this version says so.
std::optional<Collective> UnpackDescription(const int64_t* words);
// In place of one, by a rank that is in dtrain_join: less than any.
void PackJoined(int64_t* words);

// A description and the name that the caller gave, to tell who differs. Of a name that is too long,
// the end.
constexpr size_t kStatementWords = kDescriptionWords + 16;
void PackStatement(const Collective& what, std::string_view name, int64_t* words);
// By rank; one sentence that names ranks and what each of them asked for.
std::string DescribeDisagreement(const std::vector<int64_t>& statements);

}  // namespace dtrain::runtime
