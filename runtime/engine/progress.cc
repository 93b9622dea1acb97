// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/progress.h"

#include <algorithm>
#include <utility>

#include "runtime/base/types.h"

namespace dtrain::runtime {
namespace {

TimelineRecord MakeRecord(const Progress::Run& run, uint64_t number, uint64_t bytes,
                          TimelineKind kind, const Spent& spent) {
  TimelineRecord record{};
  record.negotiate_ns = spent.negotiate_ns;
  record.wait_ns = spent.wait_ns;
  record.transfer_ns = spent.transfer_ns;
  record.reduce_ns = spent.reduce_ns;
  record.number = number;
  record.bytes = bytes;
  record.kind = static_cast<uint32_t>(kind);
  record.lane = run.lane;
  return record;
}

}  // namespace

Progress::Run Progress::Describe(const std::vector<Operation*>& operations,
                                 int64_t begin_ns) const {
  Run run;
  run.begin_ns = begin_ns;
  run.lane = ThisThreadsLane();
  run.group = operations[0]->group->id;
  run.kind = operations.size() > 1 ? TimelineKind::kFusion : KindOf(operations[0]->what);
  for (const Operation* operation : operations) run.bytes += BytesOf(operation->what);
  if (!has_timeline() && !shared_) return run;
  for (const Operation* operation : operations) {
    const uint64_t bytes = BytesOf(operation->what);
    run.parts.push_back({operation->number, bytes, KindOf(operation->what), operation->name});
  }
  return run;
}

void Progress::Begin(TimelineKind kind, uint64_t number, uint64_t bytes, uint32_t group,
                     int64_t now_ns) {
  if (!watched()) return;
  if (!shared_) return page_.Begin(kind, number, bytes, group, now_ns);
  const std::lock_guard lock(mutex_);
  host_[group] = Shown{kind, number, bytes, group, now_ns};
  ShowCurrent();
}

void Progress::End(uint32_t group, uint64_t number, uint64_t operations, int64_t wait_ns,
                   int64_t now_ns) {
  if (!watched()) return;
  if (!shared_) return page_.End(number, operations, wait_ns, now_ns);
  const std::lock_guard lock(mutex_);
  const auto ended = host_.find(group);
  if (ended != host_.end()) {
    Show(ended->second);
    host_.erase(ended);
  }
  page_.End(number, operations, wait_ns, now_ns);
  ShowCurrent();
}

uint64_t Progress::Launched(Run run) {
  if (!watched()) return 0;
  const std::lock_guard lock(mutex_);
  const uint64_t id = next_++;
  const bool first = flights_.empty();
  host_.erase(run.group);
  flights_.emplace(id, std::move(run));
  if (first) ShowCurrent();
  return id;
}

void Progress::Landed(uint64_t id, int64_t done_ns) {
  if (!watched()) return;
  Run run;
  {
    const std::lock_guard lock(mutex_);
    const auto found = flights_.find(id);
    if (found == flights_.end()) return;
    run = std::move(found->second);
    flights_.erase(found);
    Show(ShownOf(run));
    page_.End(run.parts.back().number, run.parts.size(), run.spent.wait_ns, done_ns);
    // Whatever comes next in the same group has waited for the device until now.
    for (auto& [next, other] : flights_) {
      if (other.group == run.group) other.begin_ns = std::max(other.begin_ns, done_ns);
    }
    ShowCurrent();
  }
  run.spent.transfer_ns = done_ns - run.begin_ns;
  Record(run, done_ns);
}

void Progress::Forget(uint64_t id) {
  const std::lock_guard lock(mutex_);
  flights_.erase(id);
}

void Progress::Record(const Run& run, int64_t end_ns, const std::vector<int64_t>& ends) {
  if (!has_timeline()) return;
  const bool fused = run.parts.size() > 1;
  if (fused) {
    TimelineRecord record =
        MakeRecord(run, run.parts[0].number, run.bytes, TimelineKind::kFusion, run.spent);
    record.begin_ns = run.begin_ns;
    record.end_ns = end_ns;
    page_.Write(record, std::to_string(run.parts.size()) + " all-reduces");
  }
  for (size_t i = 0; i < run.parts.size(); ++i) {
    const Run::Part& part = run.parts[i];
    TimelineRecord record =
        MakeRecord(run, part.number, part.bytes, part.kind, fused ? Spent{} : run.spent);
    record.begin_ns = ends.empty() ? run.begin_ns : ends[i];
    record.end_ns = ends.empty() ? end_ns : ends[i + 1];
    page_.Write(record, part.name);
  }
}

Progress::Shown Progress::ShownOf(const Run& run) {
  return {run.kind, run.parts[0].number, run.bytes, run.group, run.begin_ns};
}

void Progress::Show(const Shown& shown) {
  page_.Begin(shown.kind, shown.number, shown.bytes, shown.group, shown.begin_ns);
}

void Progress::ShowCurrent() {
  if (!flights_.empty()) {
    Show(ShownOf(flights_.begin()->second));
    return;
  }
  const auto oldest = std::min_element(host_.begin(), host_.end(), [](auto& one, auto& other) {
    return one.second.begin_ns < other.second.begin_ns;
  });
  if (oldest != host_.end()) Show(oldest->second);
}

}  // namespace dtrain::runtime
