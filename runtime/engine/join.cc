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

bool MayBeJoined(const Collective& what) { return what.op == DTRAIN_SUM || what.op == DTRAIN_AVG; }

}  // namespace

Result<int> Executor::Join(size_t threshold) {
  if (MaybeError error = broken()) return *error;
  Group& group = groups_.world();
  if (group.size == 1) return group.rank;
  if (threshold == 0) {
    return Error{DTRAIN_ERROR_UNSUPPORTED,
                 "ranks cannot join while DTRAIN_FUSION_THRESHOLD is 0: all-reduces then run "
                 "without agreeing on them first"};
  }
  // All ranks count these alike, so the higher one came later.
  int64_t came =
      static_cast<int64_t>(group.control != nullptr ? group.next_control : group.next_run);
  came = came * group.size + group.rank;
  Operation joining;
  joining.group = &group;
  joining.name = "dtrain_join";
  for (;;) {
    joining.number = group.next_number;
    const int64_t begin_ns = NowNs();
    page_.Begin(TimelineKind::kBarrier, joining.number, 0, group.id, begin_ns);
    auto agreement = AgreeAsJoined(group);
    const int64_t end_ns = NowNs();
    page_.End(joining.number, 0, end_ns - begin_ns, end_ns);
    if (!agreement.ok()) return Break(joining, agreement.error());
    if (agreement->all_joined) break;
    if (MaybeError error = GoAlong(group, agreement->count, threshold)) return *error;
  }
  Collective last;
  last.kind = Collective::Kind::kAllreduce;
  last.count = 1;
  last.type = DTRAIN_INT64;
  last.op = DTRAIN_MAX;
  last.input = &came;
  last.output = &came;
  Spent spent;
  if (MaybeError error = RunOwn(group, last, spent)) return Break(joining, std::move(*error));
  return static_cast<int>(came % group.size);
}

Result<Agreement> Executor::AgreeAsJoined(Group& group) {
  Spent spent;
  auto agreement = MakeAgreement(group, MakeJoinedOffer(), spent);
  if (agreement.ok() && agreement->differs) return Disagreement(group, nullptr);
  return agreement;
}

Result<std::vector<Collective>> Executor::ShareWithJoined(Group& group, size_t count,
                                                          const std::vector<Operation*>& mine) {
  std::vector<int64_t> words(count * kDescriptionWords);
  for (size_t i = 0; i < count; ++i) {
    int64_t* const at = &words[i * kDescriptionWords];
    mine.empty() ? PackJoined(at) : PackDescription(mine[i]->what, at);
  }
  Collective what;
  what.kind = Collective::Kind::kAllreduce;
  what.type = DTRAIN_INT64;
  what.op = DTRAIN_MAX;
  what.count = words.size();
  what.input = words.data();
  what.output = words.data();
  Spent spent;
  if (MaybeError error = RunOwn(group, what, spent)) return *error;
  std::vector<Collective> shared;
  for (size_t i = 0; i < count; ++i) {
    const auto known = UnpackDescription(&words[i * kDescriptionWords]);
    if (!known) {
      return Error{DTRAIN_ERROR_MISMATCH,
                   "another rank has told of a collective that is not known"};
    }
    shared.push_back(*known);
    if (!MayBeJoined(shared[i])) {
      return Disagreement(group, mine.empty() ? nullptr : mine[i]);
    }
  }
  return shared;
}

MaybeError Executor::GoAlong(Group& group, size_t count, size_t threshold) {
  const int64_t begin_ns = NowNs();
  std::vector<Operation> operations(count);
  std::vector<Operation*> all;
  for (size_t i = 0; i < count; ++i) {
    operations[i].group = &group;
    operations[i].number = group.next_number + i;
    operations[i].name = "dtrain_join";
    all.push_back(&operations[i]);
  }
  auto shared = ShareWithJoined(group, count, {});
  if (!shared.ok()) return Break(operations[0], shared.error());
  std::vector<std::unique_ptr<void, Freed>> zeros;
  for (size_t i = 0; i < count; ++i) {
    const size_t bytes = (*shared)[i].count * ElementSize((*shared)[i].type);
    zeros.emplace_back(std::calloc(std::max<size_t>(bytes, 1), 1));
    if (zeros.back() == nullptr) {
      return Break(operations[i], {DTRAIN_ERROR_RESOURCES,
                                   "no memory for " + std::to_string(bytes) + " bytes of zeros"});
    }
    operations[i].what = (*shared)[i];
    operations[i].what.input = zeros.back().get();
    operations[i].what.output = zeros.back().get();
  }
  MaybeError first;
  RunBatches(all, count, threshold, {}, 0, begin_ns, [&](Operation&, const MaybeError& error) {
    if (error && !first) first = error;
  });
  if (first || !group.on_device) return first;
  if (MaybeError error = group.communicator->Finish(nullptr, env_.collective_timeout)) {
    return Break(operations[0], std::move(*error));
  }
  return std::nullopt;
}

}  // namespace dtrain::runtime
