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

MaybeError Executor::Measure(Operation& operation, bool& direct) {
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
  if (*least != *most) {
    operation.counts = std::move(counts);
    if (gather && !operation.on_device()) return std::nullopt;  // GatherRows
    if (gather) operation.counts = ToAll(operation.counts);
    what.kind = Kind::kAlltoall;
    what.counts = operation.counts.data();
    what.alike = gather;
  }
  return operation.on_device() ? AgreeOnPlaces(operation, direct) : std::nullopt;
}

MaybeError Executor::AgreeOnPlaces(const Operation& operation, bool& direct) {
  Group& group = *operation.group;
  auto usable = group.device->IsDirect(operation.what);
  if (!usable.ok()) return usable.error();
  std::vector<int64_t> all = {*usable};
  Spent spent;
  if (group.size > 1) {
    if (MaybeError error = negotiator_.GatherOwn(group, {*usable}, all, spent)) return error;
  }
  direct = std::find(all.begin(), all.end(), 0) == all.end();
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
