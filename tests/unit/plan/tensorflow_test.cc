// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/tensorflow.h"

#include "tests/unit/plan/plan_fixture.h"

namespace dtrain::plan {
namespace {

using ::testing::HasSubstr;

class TensorflowTest : public PlanFixture {
 public:
  // "chief0 worker0 ...": each rank's task.
  std::string Tasks(absl::string_view layout) {
    auto parsed = ParseTensorflowLayout(layout);
    if (!parsed.ok()) return std::string(parsed.status().message());
    options_.tensorflow = *std::move(parsed);
    const auto plan = PlaceAll();
    if (!plan.ok()) return std::string(plan.status().message());
    std::vector<std::string> tasks(plan->world_size);
    for (const PlannedNode& node : plan->nodes) {
      for (const v1::WorkerSpec& worker : node.workers) {
        tasks[worker.rank()] = absl::StrCat(worker.tensorflow_type(), worker.tensorflow_index());
      }
    }
    std::string text;
    for (const std::string& task : tasks) absl::StrAppend(&text, text.empty() ? "" : " ", task);
    return text;
  }
};

TEST_F(TensorflowTest, RanksAreTasksInTheLayoutsOrder) {
  AddHost("a", 3);
  AddHost("b", 2);
  EXPECT_EQ(Tasks("worker"), "worker0 worker1 worker2 worker3 worker4");
  EXPECT_EQ(Tasks("chief,worker"), "chief0 worker0 worker1 worker2 worker3");
  EXPECT_EQ(Tasks("ps:2,worker,evaluator"), "ps0 ps1 worker0 worker1 evaluator0");
  EXPECT_EQ(Tasks("worker:4,chief:1"), "worker0 worker1 worker2 worker3 chief0");
}

TEST_F(TensorflowTest, NumbersMustFitTheRanks) {
  AddHost("a", 3);
  EXPECT_THAT(Tasks("worker:4"), HasSubstr("names 4 tasks, and the job has 3 ranks"));
  EXPECT_THAT(Tasks("chief,worker:1"), HasSubstr("names 2 tasks"));
  EXPECT_THAT(Tasks("ps:3,worker"), HasSubstr("names at least 4 tasks"));
}

TEST_F(TensorflowTest, OddLayoutsAreRejected) {
  for (const char* layout : {"", "x", "worker,worker", "master", "worker:", "worker:0", "worker:-1",
                             "worker,", "worker:4294967296", "Worker"}) {
    EXPECT_FALSE(ParseTensorflowLayout(layout).ok()) << layout;
  }
  EXPECT_THAT(std::string(ParseTensorflowLayout("chief:2,worker").status().message()),
              HasSubstr("at most one chief"));
  EXPECT_THAT(std::string(ParseTensorflowLayout("ps,worker").status().message()),
              HasSubstr("two types have no number"));
}

TEST_F(TensorflowTest, TheClusterIsTheSameForAll) {
  AddHost("a", 2);
  AddHost("b", 2);
  ASSERT_EQ(Tasks("chief,worker,ps:1"), "chief0 worker0 worker1 ps0");
  EXPECT_EQ(TensorflowCluster(*PlaceAll(), {"a:1", "a:2", "[fd::1]:3", "b:4"}),
            "{\"chief\": [\"a:1\"], \"ps\": [\"b:4\"], \"worker\": [\"a:2\", "
            "\"[fd::1]:3\"]}");
}

}  // namespace
}  // namespace dtrain::plan
