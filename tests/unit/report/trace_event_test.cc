// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/trace_event.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace dtrain::report {
namespace {

using Json = nlohmann::json;

std::string Text(const TraceEvent& event) {
  std::string text;
  AppendEvent(event, text);
  return text;
}

TEST(TraceEventTest, IsWrittenToTheNanosecond) {
  EXPECT_EQ(Text({"allreduce", 3'600'000'000'001, 1'000, 7, 1, {{4, 1024}}}),
            R"({"name":"allreduce","ph":"X","ts":3600000000.001,"dur":1.000,"pid":7,"tid":1,)"
            R"("args":{"number":4,"bytes":1024}})");
  EXPECT_EQ(Text({"wait", -1, 10, 7, 1}),
            R"({"name":"wait","ph":"X","ts":-0.001,"dur":0.010,"pid":7,"tid":1})");
  EXPECT_EQ(Text({"worker", 0, 0, 7, 0, std::nullopt, R"({"pid":5})"}),
            R"({"name":"worker","ph":"X","ts":0.000,"dur":0.000,"pid":7,"tid":0,)"
            R"("args":{"pid":5}})");
}

TEST(TraceEventTest, TheLongestOfAllIsStillAnEvent) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  constexpr int kLow = std::numeric_limits<int>::min();
  for (const char c : {'\x01', '\x7f', '"', '\\', '\xff', 'a'}) {
    const std::string name(100'000, c);
    const Json event = Json::parse(Text({name, kLeast, kLeast, kLow, kLow, {{kMost, kMost}}}));
    const std::string shown = event["name"];
    EXPECT_EQ(shown.size(), name.size() * (c == '\xff' ? 3 : 1));
    EXPECT_EQ(event["args"]["number"], kMost);
    EXPECT_EQ(event["pid"], kLow);
  }
}

TEST(TraceEventTest, ComesBehindWhatIsThere) {
  std::string text = "[";
  AppendEvent({"a", 0, 0, 1, 1}, text);
  EXPECT_EQ(text.substr(0, 13), R"([{"name":"a",)");
  EXPECT_EQ(text.back(), '}');
}

}  // namespace
}  // namespace dtrain::report
