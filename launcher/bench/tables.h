// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "launcher/bench/options.h"
#include "launcher/bench/results.h"
#include "launcher/bench/scaling.h"

// Results for people, and for programs. Pure.
namespace dtrain::bench {

// `first` says how and where the sizes were measured.
std::string SizeTableHead(const SizeRow& first, const Options& options);
std::string SizeTableRow(const SizeRow& row, const Options& options);
std::string SizeTableEnd(const std::vector<SizeRow>& rows, const LaunchFacts& facts);
std::string SizesJson(const std::vector<SizeRow>& rows);

// Of rank `rank`, or "rank 3" where it is not known; with the rank where a host has several.
std::string NameOf(uint32_t rank, const LaunchFacts& facts);

// The middle one; 0 when there is none.
double MedianBandwidth(const std::vector<PairRow>& rows);
// Below this part of the median a pair counts as slow.
inline constexpr double kSlowPart = 0.5;

std::string PairTable(const std::vector<PairRow>& rows, const LaunchFacts& facts);
std::string PairsJson(const std::vector<PairRow>& rows, const LaunchFacts& facts);

std::string ScalingTable(const std::vector<ScalingRow>& rows);
std::string ScalingJson(const std::vector<ScalingRow>& rows);

}  // namespace dtrain::bench
