// SPDX-License-Identifier: Apache-2.0
// What a launch costs may grow with its nodes, not faster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/sim/scenarios.h"

namespace dtrain::sim {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMeasures = false;  // only that it works
#else
constexpr bool kMeasures = true;
#endif

constexpr int kMostRepeats = 8;
// What is counted may grow five times. Time is that of a machine whose caches hold 1,000 nodes and
// not 4,000, and whose other work comes in between: what is quadratic takes sixteen times.
constexpr int kTimes = 8;
// Of the many: what was in the processor's caches for few must be fetched from memory. What grows
// with the square of some thousand nodes takes many times as long.
constexpr Duration kCaches = std::chrono::milliseconds(2);

class Complexity : public testing::TestWithParam<size_t> {
 protected:
  static const Scenario& scenario() { return Scenarios()[GetParam()]; }
  static Duration Work(const Bill& bill) {
    return bill.launcher_cpu + (scenario().grows_on_nodes ? Duration::zero() : bill.nodes_cpu);
  }
};

TEST_P(Complexity, FourTimesTheNodesAreAtMostFiveTimesTheWork) {
  const size_t some = kMeasures ? scenario().few : 16;
  const Bill few = scenario().run(some), many = scenario().run(4 * some);
  EXPECT_LE(many.messages, 5 * few.messages);
  EXPECT_LE(many.bytes_made, 5 * few.bytes_made);
  EXPECT_LE(many.bytes_in, 5 * few.bytes_in);
  if (!kMeasures) return;
  // The processor's time of this thread, not the clock's, and the least of some tries: others on
  // this machine only ever add to it. The two are measured in turns.
  Duration least_few = Work(few), least_many = Work(many);
  for (int i = 0; i < kMostRepeats && least_many > kTimes * least_few + kCaches; ++i) {
    least_few = std::min(least_few, Work(scenario().run(some)));
    least_many = std::min(least_many, Work(scenario().run(4 * some)));
  }
  EXPECT_LE(least_many.count(), (kTimes * least_few + kCaches).count())
      << scenario().what << ": " << least_few.count() / 1000 << " us for " << some << " nodes, "
      << least_many.count() / 1000 << " us for " << 4 * some;
}

INSTANTIATE_TEST_SUITE_P(Scenarios, Complexity, testing::Range(size_t{0}, Scenarios().size()),
                         [](const testing::TestParamInfo<size_t>& info) {
                           return Scenarios()[info.param].name;
                         });

}  // namespace
}  // namespace dtrain::sim
