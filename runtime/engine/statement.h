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

// What ranks tell each other about single operations, in words that a collective can carry. Pure.

// Tells ranks in dtrain_join what the others do.
constexpr size_t kDescriptionWords = 6;  // int64
void PackDescription(const Collective& what, int64_t* words);
// nullopt when no rank of this version says so.
std::optional<Collective> UnpackDescription(const int64_t* words);
// In place of one, by a rank that is in dtrain_join: less than any.
void PackJoined(int64_t* words);

// A description, and the name and the shape that the caller gave, to tell who differs. Of a text
// that is too long, the end.
constexpr size_t kNameWords = 16, kShapeWords = 9;
constexpr size_t kStatementWords = kDescriptionWords + kNameWords + kShapeWords;
void PackStatement(const Collective& what, std::string_view name, std::string_view shape,
                   int64_t* words);
// By rank; one sentence that names ranks and what each of them asked for.
std::string DescribeDisagreement(const std::vector<int64_t>& statements);

}  // namespace dtrain::runtime
