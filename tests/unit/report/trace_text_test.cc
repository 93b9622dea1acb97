// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/trace_text.h"

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

namespace dtrain::report {
namespace {

using Json = nlohmann::json;

std::string Text(const TraceEvent& event) {
  TraceText text;
  text.Append(event);
  EXPECT_EQ(text.text().substr(0, 1), "\n");
  return std::string(text.text().substr(1));
}

TEST(TraceTextTest, TimesAreExactToTheNanosecond) {
  const std::string track = TrackText(7, 1);
  EXPECT_EQ(Text({R"("allreduce")", 3'600'000'000'001, 1'000, track, {{4, 1024}}}),
            R"({"name":"allreduce","ph":"X","ts":3600000000.001,"dur":1.000,"pid":7,"tid":1,)"
            R"("args":{"number":4,"bytes":1024}})");
  EXPECT_EQ(Text({R"("worker")", 0, 0, track, std::nullopt, R"({"pid":5})"}),
            R"({"name":"worker","ph":"X","ts":0.000,"dur":0.000,"pid":7,"tid":1,)"
            R"("args":{"pid":5}})");
  const std::pair<int64_t, const char*> kTimes[] = {
      {-1, "-0.001"},
      {999'999'999, "999999.999"},
      {1'000'000'000, "1000000.000"},
      {1'002'003'004, "1002003.004"},
      {-12'345'678'901'234, "-12345678901.234"},
      {std::numeric_limits<int64_t>::max(), "9223372036854775.807"},
      {std::numeric_limits<int64_t>::min(), "-9223372036854775.808"}};
  for (const auto& [nanos, text] : kTimes) {
    EXPECT_THAT(Text({R"("a")", nanos, 10, track}),
                testing::HasSubstr(absl::StrCat(R"("ts":)", text, R"(,"dur":0.010,)")));
  }
}

TEST(TraceTextTest, TheLongestOfAllIsStillAnEvent) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  constexpr int kLow = std::numeric_limits<int>::min();
  for (const char c : {'\x01', '\x7f', '"', '\\', '\xff', 'a'}) {
    const std::string name(100'000, c);
    const Json event = Json::parse(
        Text({QuotedName(name), kLeast, kLeast, TrackText(kLow, kLow), {{kMost, kMost}}}));
    const std::string shown = event["name"];
    EXPECT_EQ(shown.size(), name.size() * (c == '\xff' ? 3 : 1));
    EXPECT_EQ(event["args"]["number"], kMost);
    EXPECT_EQ(event["pid"], kLow);
  }
}

TEST(TraceTextTest, ElementsStandBehindEachOtherAlsoWhenSomeWereTaken) {
  TraceText text;
  std::string all = "[";
  for (int i = 0; i < 1000; ++i) {
    text.Append({R"("a")", i, 0, TrackText(1, 1)});
    text.Append("{}");
    if (i % 7 != 0) continue;
    absl::StrAppend(&all, text.text());
    text.Clear();
  }
  absl::StrAppend(&all, text.text(), "]");
  const Json array = Json::parse(all);
  ASSERT_EQ(array.size(), 2000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(array[2 * i]["ts"], i / 1000.0);
}

}  // namespace
}  // namespace dtrain::report
