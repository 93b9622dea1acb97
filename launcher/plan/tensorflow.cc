// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/tensorflow.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"

namespace dtrain::plan {
namespace {

constexpr absl::string_view kTypes[] = {"chief", "ps", "worker", "evaluator"};

bool IsAlone(absl::string_view type) { return type == "chief" || type == "evaluator"; }

}  // namespace

absl::StatusOr<std::vector<TensorflowTasks>> ParseTensorflowLayout(absl::string_view text) {
  std::vector<TensorflowTasks> layout;
  std::set<std::string> seen;
  int open = 0;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<std::string> halves = absl::StrSplit(part, absl::MaxSplits(':', 1));
    TensorflowTasks tasks{halves[0], std::nullopt};
    uint32_t number = 0;
    const bool known =
        std::find(std::begin(kTypes), std::end(kTypes), tasks.type) != std::end(kTypes);
    if (!known || !seen.insert(tasks.type).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", Escape(part, 40), "\" is not chief, worker, ps or evaluator, each once, with a ",
          "number behind ':' (chief,worker or chief,worker:4,ps:2)"));
    }
    if (halves.size() == 2) {
      if (!absl::SimpleAtoi(halves[1], &number) || number == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("\"", Escape(part, 40), "\": a number of tasks follows ':'"));
      }
      tasks.count = number;
    }
    if (IsAlone(tasks.type)) {
      if (tasks.count.value_or(1) != 1) {
        return absl::InvalidArgumentError(absl::StrCat("there is at most one ", tasks.type));
      }
      tasks.count = 1;
    }
    if (!tasks.count && ++open > 1) {
      return absl::InvalidArgumentError(
          "two types have no number; give one of them with ':', as in worker:4");
    }
    layout.push_back(std::move(tasks));
  }
  return layout;
}

absl::Status AssignTensorflow(const std::vector<TensorflowTasks>& layout, Plan& plan) {
  uint64_t fixed = 0;
  bool open = false;
  for (const TensorflowTasks& tasks : layout) {
    fixed += tasks.count.value_or(0);
    open = open || !tasks.count;
  }
  if (open ? fixed >= plan.world_size : fixed != plan.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tf-config names ", open ? "at least " : "", fixed + (open ? 1 : 0),
                     " tasks, and the job has ", Count(plan.world_size, "rank")));
  }
  std::vector<std::pair<const TensorflowTasks*, uint32_t>> task_of_rank;
  for (const TensorflowTasks& tasks : layout) {
    const auto count = tasks.count.value_or(static_cast<uint32_t>(plan.world_size - fixed));
    for (uint32_t i = 0; i < count; ++i) task_of_rank.emplace_back(&tasks, i);
  }
  for (PlannedNode& node : plan.nodes) {
    for (v1::WorkerSpec& worker : node.workers) {
      worker.set_tensorflow_type(task_of_rank[worker.rank()].first->type);
      worker.set_tensorflow_index(task_of_rank[worker.rank()].second);
    }
  }
  return absl::OkStatus();
}

std::string TensorflowCluster(const Plan& plan, const std::vector<std::string>& addresses) {
  std::map<std::string, std::map<uint32_t, std::string>> by_type;
  for (const PlannedNode& node : plan.nodes) {
    for (const v1::WorkerSpec& worker : node.workers) {
      by_type[worker.tensorflow_type()][worker.tensorflow_index()] =
          absl::StrCat("\"", addresses[worker.rank()], "\"");
    }
  }
  std::vector<std::string> lists;
  for (const absl::string_view type : kTypes) {
    const auto tasks = by_type.find(std::string(type));
    if (tasks == by_type.end()) continue;
    lists.push_back(absl::StrCat(
        "\"", type, "\": [",
        absl::StrJoin(tasks->second, ", ",
                      [](std::string* out, const auto& each) { out->append(each.second); }),
        "]"));
  }
  return absl::StrCat("{", absl::StrJoin(lists, ", "), "}");
}

}  // namespace dtrain::plan
