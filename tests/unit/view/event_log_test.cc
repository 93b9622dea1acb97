// SPDX-License-Identifier: Apache-2.0
#include "common/view/event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

namespace dtrain::view {
namespace {

using Json = nlohmann::ordered_json;

TEST(EventLogTest, NumbersAndTellsThemInOrder) {
  EventLog log;
  EXPECT_EQ(log.last(), 0u);
  EXPECT_EQ(log.Since(0), Json::array());
  log.Add(0.5, "phase", {{"text", "connect"}});
  log.Add(1, "lost", {{"host", "node1"}});
  EXPECT_EQ(log.last(), 2u);
  uint64_t id = 0;
  EXPECT_EQ(log.Lines(id, 1000),
            "{\"id\":1,\"seconds\":0.5,\"kind\":\"phase\",\"text\":\"connect\"}\n"
            "{\"id\":2,\"seconds\":1.0,\"kind\":\"lost\",\"host\":\"node1\"}\n");
  EXPECT_EQ(id, 2u);
  EXPECT_EQ(log.Lines(id, 1000), "");
  EXPECT_EQ(log.Since(1).size(), 1u);
  EXPECT_EQ(log.Since(1)[0]["host"], "node1");
}

TEST(EventLogTest, GivesLinesInPieces) {
  EventLog log;
  for (int i = 0; i < 10; ++i) log.Add(i, "warning", {{"text", std::string(100, 'x')}});
  uint64_t id = 0;
  int pieces = 0;
  std::string all;
  for (std::string piece; !(piece = log.Lines(id, 300)).empty(); ++pieces) all += piece;
  EXPECT_GT(pieces, 2);
  EXPECT_LT(pieces, 10);
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 10);
}

TEST(EventLogTest, KeepsTheLast) {
  EventLog log;
  for (size_t i = 0; i < EventLog::kMost + 5; ++i) log.Add(0, "warning", {{"text", "w"}});
  EXPECT_EQ(log.last(), EventLog::kMost + 5);
  EXPECT_EQ(log.Since(0).size(), EventLog::kMost);
  EXPECT_EQ(log.Since(0)[0]["id"], 6);
  EXPECT_EQ(log.Since(log.last() + 7).size(), 0u);
}

TEST(EventLogTest, WhatIsNoUtf8IsReplaced) {
  EventLog log;
  log.Add(0, "warning", {{"text", "a\xff\nb"}});
  uint64_t id = 0;
  EXPECT_EQ(Json::parse(log.Lines(id, 1000))["text"], "a\xef\xbf\xbd\nb");
}

}  // namespace
}  // namespace dtrain::view
