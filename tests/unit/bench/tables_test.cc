// SPDX-License-Identifier: Apache-2.0
#include "launcher/bench/tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <limits>
#include <sstream>

namespace dtrain::bench {
namespace {

using testing::HasSubstr;
using testing::Not;

LaunchFacts Hosts(std::vector<std::string> hosts) {
  LaunchFacts facts;
  facts.nodes = hosts.size();
  for (std::string& host : hosts) facts.ranks.push_back({std::move(host), 0, 0, 0, 0});
  return facts;
}

TEST(BenchTables, SizesLookLikeThoseOfNcclTests) {
  Options options;
  const std::vector<SizeRow> rows = {SizeRow{{10, 0.4, 0.4, 0}, 4},
                                     SizeRow{{100, 10, 10, 3}, 1 << 20}};
  const std::string head = SizeTableHead(rows[0], options);
  EXPECT_THAT(head, HasSubstr("allreduce, sum of float32"));
  EXPECT_THAT(head, HasSubstr("algbw"));
  EXPECT_THAT(head, HasSubstr("#wrong"));
  std::istringstream cells(SizeTableRow(rows[1], options));
  std::string bytes, count, type, op, time, algorithm, bus, wrong;
  cells >> bytes >> count >> type >> op >> time >> algorithm >> bus >> wrong;
  EXPECT_EQ(bytes, "1048576");
  EXPECT_EQ(count, "262144");
  EXPECT_EQ(type, "float32");
  EXPECT_EQ(op, "sum");
  EXPECT_EQ(time, "100.00");
  EXPECT_EQ(bus, "10.000");
  EXPECT_EQ(wrong, "3");
  EXPECT_EQ(SizeTableEnd(rows, Hosts({"a", "b"})),
            "# 2 ranks on 2 nodes. Avg bus bandwidth: 5.200 GB/s\n");
}

TEST(BenchTables, APipelinedTableHasBothPlacesAndSaysSo) {
  SizeRow row{{10, 1, 1.5, 0}, 8};
  row.pipelined = true;
  row.memory = "device";
  row.in_place = Timing{7, 2, 3, 4};
  const std::string head = SizeTableHead(row, Options());
  EXPECT_THAT(head, HasSubstr("float32 in GPU memory, pipelined: mean time"));
  EXPECT_THAT(head, HasSubstr("out of place"));
  std::istringstream cells(SizeTableRow(row, Options()));
  std::vector<std::string> words{std::istream_iterator<std::string>(cells), {}};
  EXPECT_THAT(words, testing::ElementsAre("8", "2", "float32", "sum", "10.00", "1.000", "1.500",
                                          "0", "7.00", "2.000", "3.000", "4"));
  const auto again = ReadSizes(SizesJson({row}));
  ASSERT_EQ(again.size(), 1u);
  EXPECT_TRUE(again[0].pipelined);
  EXPECT_EQ(again[0].memory, "device");
  ASSERT_TRUE(again[0].in_place.has_value());
  EXPECT_EQ(again[0].in_place->busbw_gbs, 3);
  // A collective that cannot work in place.
  row.in_place.reset();
  EXPECT_THAT(SizeTableRow(row, Options()), testing::EndsWith(" -\n"));
}

TEST(BenchTables, TheHeadNamesMannerAndMemory) {
  SizeRow row{{10, 1, 1.5, 0}, 8};
  row.memory = "plain";
  const std::string head = SizeTableHead(row, Options());
  EXPECT_THAT(head, HasSubstr("in host memory, one call at a time: medians of the slowest"));
  EXPECT_THAT(head, Not(HasSubstr("in place")));
}

TEST(BenchTables, CountsAreElementsOfTheType) {
  Options options;
  options.collective = "broadcast";
  options.type = "bfloat16";
  EXPECT_THAT(SizeTableRow(SizeRow{{1, 1, 1, 0}, 8}, options), HasSubstr("  4  bfloat16      - "));
}

TEST(BenchTables, JsonIsWhatWasRead) {
  const std::vector<SizeRow> rows = {SizeRow{{10.5, 0.25, 0.5, 1}, 4}};
  const std::string text = SizesJson(rows);
  const auto again = ReadSizes(text);
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].time_us, 10.5);
  EXPECT_EQ(again[0].wrong, 1u);
  EXPECT_FALSE(again[0].pipelined);
  EXPECT_FALSE(again[0].in_place.has_value());
  EXPECT_EQ(SizesJson({}), "[\n]\n");
}

TEST(BenchTables, SlowPairsAreMarkedByTheNamesOfTheirHosts) {
  const std::vector<PairRow> rows = {{0, 1, 30, 1.0}, {0, 2, 31, 0.4}, {1, 2, 30, 1.1}};
  const std::string table = PairTable(rows, Hosts({"alpha", "beta", "gamma"}));
  std::istringstream lines(table);
  std::string line;
  int slow = 0;
  while (std::getline(lines, line)) {
    if (line.find("SLOW") == std::string::npos) continue;
    ++slow;
    EXPECT_THAT(line, HasSubstr("alpha"));
    EXPECT_THAT(line, HasSubstr("gamma"));
    EXPECT_THAT(line, HasSubstr("40% of the median"));
  }
  EXPECT_EQ(slow, 1);
  EXPECT_THAT(table, HasSubstr("median 1.000 GB/s; 1 pair is below half of it"));
  EXPECT_THAT(PairsJson(rows, Hosts({"alpha", "beta", "gamma"})), HasSubstr("\"slow\":true"));
  EXPECT_EQ(ReadPairs(PairsJson(rows, {})).size(), 3u);
}

TEST(BenchTables, RanksOfOneHostAreToldApart) {
  const LaunchFacts facts = Hosts({"a", "a", "b"});
  EXPECT_EQ(NameOf(0, facts), "a:0");
  EXPECT_EQ(NameOf(1, facts), "a:1");
  EXPECT_EQ(NameOf(2, facts), "b");
  EXPECT_EQ(NameOf(9, facts), "rank 9");
}

TEST(BenchTables, ScalingSaysFromWhichBatchItPays) {
  ScalingRow one;
  one.count = {1, true};
  one.startup = 0.05;
  one.step = 0.1;
  one.steps = 9;
  one.compute = 0.08;
  one.speed_up = one.efficiency = 1;
  ScalingRow two = one;
  two.count = {2, false};
  two.allreduce = 0.02;
  two.predicted_allreduce = 0.015;
  two.speed_up = 1.5;
  two.efficiency = 0.75;
  two.samples = 64;
  two.rate = 960;
  two.pays_from = 40;
  const std::string table = ScalingTable({one, two});
  EXPECT_THAT(table, HasSubstr("speed-up"));
  EXPECT_THAT(table, HasSubstr("75%"));
  EXPECT_THAT(table, HasSubstr("15.00"));
  EXPECT_THAT(table, HasSubstr("2 ranks pay from 40 samples"));
  EXPECT_THAT(table, Not(HasSubstr("No worker printed")));
  EXPECT_THAT(ScalingJson({one, two}), HasSubstr("\"predicted_allreduce_s\":0.015"));
  two.pays_from = std::numeric_limits<double>::infinity();
  EXPECT_THAT(ScalingTable({one, two}), HasSubstr("2 ranks do not pay"));
  EXPECT_THAT(ScalingJson({one, two}), HasSubstr("\"pays_from_samples\":null"));
  EXPECT_THAT(ScalingTable({ScalingRow()}), HasSubstr("No worker printed"));
}

}  // namespace
}  // namespace dtrain::bench
