// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/collective.h"
#include "runtime/base/outline.h"

namespace dtrain::runtime {

// What ranks tell each other about single operations, in words that a collective can carry. Pure.

// An Outline without its number tells ranks in dtrain_join what the others do.
constexpr size_t kOutlineWords = sizeof(Outline) / sizeof(int64_t);
void PackOutline(const Collective& what, int64_t* words);
std::optional<Collective> UnpackOutline(const int64_t* words);  // as CollectiveOf
// In place of one, by a rank that is in dtrain_join: less than any.
void PackJoined(int64_t* words);

// An outline, and the name and the shape that the caller gave, to tell who differs. Of a text
// that is too long, the end.
constexpr size_t kNameWords = 16, kShapeWords = 9;
constexpr size_t kStatementWords = kOutlineWords + kNameWords + kShapeWords;
void PackStatement(const Collective& what, std::string_view name, std::string_view shape,
                   int64_t* words);
// By rank; the sentence that names the ranks and what each of them asked for. `names`: their
// numbers in the job, where these are others.
std::string CompareStatements(const std::vector<int64_t>& statements,
                              const std::vector<int>& names = {});

}  // namespace dtrain::runtime
