// SPDX-License-Identifier: Apache-2.0
// All-gathers and all-to-alls in which each rank has any number of rows.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>

#include "runtime/base/types.h"
#include "runtime/engine/executor.h"
#include "runtime/reduce/reduce_all.h"

namespace dtrain::runtime {
namespace {

using Kind = Collective::Kind;

// A collective of its own for each part takes as long as moving about so many bytes with all
// others.
constexpr size_t kWorthACall = size_t{32} << 10;

// Held while a function of the program's runs.
std::shared_mutex program_runs;
bool program_has_ended = false;

// counts[from * n + to] of an all-to-all in which each rank sends all its elements to every rank.
std::vector<uint64_t> ToAll(const std::vector<uint64_t>& counts) {
  std::vector<uint64_t> matrix;
  for (const uint64_t count : counts) matrix.insert(matrix.end(), counts.size(), count);
  return matrix;
}

}  // namespace

void Executor::StopAllocating() {
  const std::lock_guard<std::shared_mutex> alone(program_runs);
  program_has_ended = true;
}

MaybeError Executor::Measure(Operation& operation) {
  Group& group = *operation.group;
  Collective& what = operation.what;
  const auto n = static_cast<size_t>(group.size), me = static_cast<size_t>(group.rank);
  const bool gather = what.kind == Kind::kAllgather;
  const std::vector<int64_t> mine(operation.rows.begin(), operation.rows.end());
  std::vector<int64_t> all = mine;
  Spent spent;
  if (n > 1) {
    if (MaybeError error = negotiator_.GatherOwn(group, mine, all, spent)) return error;
  }
  std::vector<uint64_t> counts, come;
  size_t bytes = 0;
  for (const int64_t rows : all) counts.push_back(static_cast<uint64_t>(rows) * operation.length);
  for (size_t from = 0; from < n; ++from) {
    come.push_back(static_cast<uint64_t>(all[gather ? from : from * n + me]));
    bytes += come.back() * operation.length * ElementSize(what.type);
  }
  {
    const std::shared_lock<std::shared_mutex> runs(program_runs);
    if (program_has_ended) return Error{DTRAIN_ERROR_STATE, "the program has ended"};
    what.output = operation.allocate(come.data());
  }
  if (what.output == nullptr && bytes > 0) {
    return Error{DTRAIN_ERROR_RESOURCES, "the program has no memory for the " +
                                             std::to_string(bytes) + " bytes of all ranks' rows"};
  }
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  what.count = *most;
  if (*least == *most) return AgreeOnPlaces(operation, what);
  const bool on_device = operation.on_device();
  const std::vector<uint64_t> matrix = gather && on_device ? ToAll(counts) : counts;
  Collective unequal = what;
  unequal.kind = Kind::kAlltoall;
  unequal.counts = matrix.data();
  unequal.alike = gather;
  if (MaybeError error = AgreeOnPlaces(operation, unequal)) return error;
  const bool gathers = gather && operation.via == Via::kHost;  // see GatherRows
  operation.counts = gathers ? counts : matrix;
  if (gathers) return std::nullopt;
  what = unequal;
  what.counts = operation.counts.data();
  return std::nullopt;
}

MaybeError Executor::AgreeOnPlaces(Operation& operation, const Collective& what) {
  if (!operation.on_device()) return std::nullopt;
  Group& group = *operation.group;
  const auto here = group.device->ViaOf(what);
  if (!here.ok()) return here.error();
  operation.via = *here;
  if (group.size == 1) return std::nullopt;
  std::vector<int64_t> all;
  Spent spent;
  const std::vector<int64_t> mine = {static_cast<int64_t>(*here),
                                     static_cast<int64_t>(group.device->RegisteredUse(what))};
  if (MaybeError error = negotiator_.GatherOwn(group, mine, all, spent)) return error;
  for (size_t r = 0; r < all.size(); r += mine.size()) {
    if (all[r] != mine[0] || all[r + 1] != mine[1]) operation.via = Via::kStaged;
  }
  return std::nullopt;
}

MaybeError Executor::GatherRows(const Operation& operation, Spent& spent) {
  Group& group = *operation.group;
  const Collective& what = operation.what;
  const auto n = static_cast<size_t>(group.size), me = static_cast<size_t>(group.rank);
  const size_t width = ElementSize(what.type), longest = what.count * width;
  std::vector<size_t> at = {0};  // where each part begins, and where the last one ends
  for (size_t r = 0; r < n; ++r) at.push_back(at.back() + operation.counts[r] * width);
  auto* const output = static_cast<char*>(what.output);
  const size_t mine = at[me + 1] - at[me];
  if (longest * n - at.back() > kWorthACall * n) {
    if (mine > 0) CopyBytes(output + at[me], what.input, mine);
    Collective part = what;
    part.kind = Kind::kBroadcast;
    for (size_t r = 0; r < n; ++r) {
      part.count = operation.counts[r];
      part.input = part.output = output + at[r];
      part.root = static_cast<int>(r);
      if (part.count == 0) continue;
      if (MaybeError error = Transfer(group, part, spent)) return error;
    }
    return std::nullopt;
  }
  auto buffer = Buffer(longest * (n + 1));
  if (!buffer.ok()) return buffer.error();
  auto* const padded = reinterpret_cast<char*>(*buffer);
  if (mine > 0) CopyBytes(padded, what.input, mine);
  Collective whole = what;
  whole.input = padded;
  whole.output = padded + longest;
  if (MaybeError error = Transfer(group, whole, spent)) return error;
  for (size_t r = 0; r < n; ++r) {
    if (at[r + 1] == at[r]) continue;
    CopyBytes(output + at[r], padded + longest * (r + 1), at[r + 1] - at[r]);
  }
  return std::nullopt;
}

}  // namespace dtrain::runtime
