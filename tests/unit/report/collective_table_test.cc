// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/collective_table.h"

#include "gmock/gmock.h"
#include "tests/unit/report/facts_fixture.h"

namespace dtrain::report {
namespace {

using CollectiveTableTest = FactsTest;

TEST_F(CollectiveTableTest, NothingWithoutTheLibrary) {
  End(0);
  EXPECT_EQ(CollectiveTable(Facts()), "");
}

TEST_F(CollectiveTableTest, TheLatestRankComesFirst) {
  for (uint32_t rank = 0; rank < 4; ++rank) {
    v1::RankProgress& progress = ranks_[rank].progress;
    progress.set_operations(100 + rank);
    progress.set_total_bytes(2'500'000);
    progress.set_busy_nanos(9'000'000'000);
    progress.set_wait_nanos(rank == 2 ? 10'000'000 : 5'000'000'000);
  }
  EXPECT_EQ(CollectiveTable(Facts()),
            "  rank  host                  collectives           MB       inside      waiting\n"
            "     2  node2                         102          2.5       9.00 s       0.01 s\n"
            "     0  node1                         100          2.5       9.00 s       5.00 s\n"
            "     1  node1                         101          2.5       9.00 s       5.00 s\n"
            "     3  node2                         103          2.5       9.00 s       5.00 s\n");
}

}  // namespace
}  // namespace dtrain::report
