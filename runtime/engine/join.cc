// SPDX-License-Identifier: Apache-2.0
// A rank that has nothing more to do keeps the others' all-reduces going with zeros.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/types.h"
#include "runtime/engine/executor.h"

namespace dtrain::runtime {
namespace {

struct Freed {
  void operator()(void* memory) const { std::free(memory); }
};

}  // namespace

Result<int> Executor::Join(size_t threshold) {
  if (MaybeError error = broken()) return *error;
  Group& group = groups_.world();
  if (group.size == 1) return group.rank;
  // All ranks count these alike, so the higher one came later.
  auto came = static_cast<int64_t>(group.next_run);
  came = came * group.size + group.rank;
  Operation joining;
  joining.group = &group;
  joining.name = "dtrain_join";
  for (;;) {
    joining.number = group.next_number;
    const int64_t begin_ns = NowNs();
    progress_.Begin(TimelineKind::kBarrier, joining.number, 0, group.id, begin_ns);
    auto agreed = negotiator_.AgreeAsJoined(group);
    const int64_t end_ns = NowNs();
    progress_.End(group.id, joining.number, 0, end_ns - begin_ns, end_ns);
    if (!agreed.ok()) return Break(joining, agreed.error());
    if (agreed->all) break;
    if (agreed->run.empty()) continue;
    if (MaybeError error = GoAlong(group, agreed->run, threshold)) return *error;
  }
  group.next_unnamed = 0;  // ranks have made as many as they had data for
  Collective last;
  last.kind = Collective::Kind::kAllreduce;
  last.count = 1;
  last.type = DTRAIN_INT64;
  last.op = DTRAIN_MAX;
  last.input = &came;
  last.output = &came;
  Spent spent;
  if (MaybeError error = negotiator_.RunOwn(group, last, spent))
    return Break(joining, std::move(*error));
  return static_cast<int>(came % group.size);
}

MaybeError Executor::GoAlong(Group& group, const std::vector<Negotiator::Joint>& agreed,
                             size_t threshold) {
  const int64_t begin_ns = NowNs();
  std::vector<Operation> operations(agreed.size());
  std::vector<Operation*> all;
  std::vector<std::unique_ptr<void, Freed>> zeros;
  for (size_t i = 0; i < agreed.size(); ++i) {
    Operation& operation = operations[i];
    operation.group = &group;
    operation.number = group.next_number + i;
    operation.name = "dtrain_join";
    const size_t bytes = agreed[i].what.count * ElementSize(agreed[i].what.type);
    zeros.emplace_back(std::calloc(std::max<size_t>(bytes, 1), 1));
    if (zeros.back() == nullptr) {
      return Break(operation, {DTRAIN_ERROR_RESOURCES,
                               "no memory for " + std::to_string(bytes) + " bytes of zeros"});
    }
    operation.what = agreed[i].what;
    operation.via = agreed[i].via;
    operation.what.input = zeros.back().get();
    operation.what.output = zeros.back().get();
    all.push_back(&operation);
  }
  MaybeError first;
  // Zeros are the host's, so that all of it is done on return, on a device as well.
  RunBatches(all, threshold, {}, 0, begin_ns, [&](Operation&, const MaybeError& error) {
    if (error && !first) first = error;
  });
  return first;
}

}  // namespace dtrain::runtime
