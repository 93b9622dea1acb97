// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/timeline.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "tests/unit/report/facts_fixture.h"

namespace dtrain::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::json;

constexpr int64_t kLaunch = 1'700'000'000'000'000'000;  // unix ns

class TimelineTest : public FactsTest {
 protected:
  TimelineTest() {
    char name[] = "/tmp/dtrain-timeline-test-XXXXXX";
    directory_ = mkdtemp(name);
    path_ = directory_ + "/trace.json";
  }
  ~TimelineTest() override {
    unlink(path_.c_str());
    rmdir(directory_.c_str());
  }
  void Make(bool only_spans = false) {
    timeline_ = std::make_unique<Timeline>(path_, only_spans, At(0), kLaunch);
  }
  struct Span {
    uint32_t kind = 1;
    std::string name = "grad \"a\"\xff";
    int64_t begin = kLaunch;
    int64_t duration = 0;
    int64_t wait = 0;
    int64_t transfer = 0;
    int64_t reduce = 0;
  };
  static void Add(const Span& span, v1::Spans& spans) {
    spans.add_kind(span.kind);
    spans.add_lane(0);
    spans.add_number_step(4);
    spans.add_bytes(1024);
    spans.add_begin_step(span.begin);
    spans.add_duration_nanos(span.duration);
    spans.add_negotiate_nanos(0);
    spans.add_wait_nanos(span.wait);
    spans.add_transfer_nanos(span.transfer);
    spans.add_reduce_nanos(span.reduce);
    spans.add_name_bytes(static_cast<uint32_t>(span.name.size()));
    *spans.mutable_names() += span.name;
  }
  // Milliseconds since the launch, on a node whose clock is `ahead_ms` ahead.
  static v1::Spans Spans(uint32_t rank, int begin_ms, int ms, int ahead_ms = 0) {
    v1::Spans spans;
    spans.set_rank(rank);
    Span span;
    span.begin = kLaunch + int64_t{begin_ms + ahead_ms} * 1'000'000;
    span.duration = int64_t{ms} * 1'000'000;
    span.wait = 1'000'000;
    span.transfer = int64_t{ms} * 1'000'000;  // longer than what is left of the span
    Add(span, spans);
    return spans;
  }
  void Tell(const std::string& host, int64_t ahead_nanos, const v1::Spans& spans) {
    timeline_->AddSpans(host, ahead_nanos, spans.SerializeAsString());
  }
  std::vector<Json> Events() {
    std::ifstream in(path_);
    std::vector<Json> out;
    for (const Json& event : Json::parse(in)) {
      if (event["ph"] == "X") out.push_back(event);
    }
    return out;
  }
  std::string directory_, path_;
  std::unique_ptr<Timeline> timeline_;
};

TEST_F(TimelineTest, ShowsPhasesNodesWorkersAndSpansOnOneClock) {
  Make();
  timeline_->NodeReached(NodeId(0), "node1", "connect", At(20));
  timeline_->NodeReached(NodeId(0), "node1", "start workers", At(50));
  Tell("node2", 3'600'000'000'000, Spans(3, 100, 10, 3'600'000));
  Phase(job::State::kConnecting, 0, 20);
  Phase(job::State::kRunning, 20, 500);
  v1::WorkerExit& exit = End(3);
  ranks_[3].ended_unix_nanos = kLaunch + 400'000'000;
  exit.set_monotonic_nanos(300'000'000);
  ASSERT_TRUE(timeline_->Finish(Facts(), At(500)).ok());

  std::map<std::string, Json> by_name;
  for (const Json& event : Events()) by_name[event["name"]] = event;
  EXPECT_EQ(by_name["start workers"]["ts"], 20000.0);
  EXPECT_EQ(by_name["start workers"]["dur"], 30000.0);
  EXPECT_EQ(by_name["run"]["dur"], 480000.0);
  const Json& span = by_name["allreduce grad \"a\"\xEF\xBF\xBD"];
  EXPECT_EQ(span["ts"], 100000.0);
  EXPECT_EQ(span["args"]["number"], 4);
  EXPECT_EQ(by_name["wait"]["ts"], 100000.0);
  EXPECT_EQ(by_name["transfer"]["ts"], 101000.0);
  EXPECT_EQ(by_name["transfer"]["dur"], 9000.0);  // inside its parent, whatever the worker says
  EXPECT_EQ(by_name["worker"]["ts"], 100000.0);
  EXPECT_EQ(by_name["worker"]["dur"], 300000.0);
  EXPECT_EQ(by_name["worker"]["pid"], span["pid"]);
}

TEST_F(TimelineTest, TimesAreExactToTheNanosecond) {
  Make();
  v1::Spans spans = Spans(0, 3'600'000, 1);
  spans.set_begin_step(0, kLaunch + 3'600'000'000'001);
  Tell("node1", 0, spans);
  spans.set_begin_step(0, kLaunch - 1);
  Tell("node1", 0, spans);
  ASSERT_TRUE(timeline_->Finish(Facts(), At(5)).ok());
  std::ifstream in(path_);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  EXPECT_THAT(text, HasSubstr("\"ts\":3600000000.001,\"dur\":1000.000,"));
  EXPECT_THAT(text, HasSubstr("\"ts\":-0.001,"));
}

TEST_F(TimelineTest, NonsenseFromAWorkerIsStillATrace) {
  Make();
  v1::Spans spans = Spans(0, 1, 1);
  for (const int64_t nonsense : {INT64_MIN, INT64_MAX, int64_t{-1}}) {
    Add({99, "\x01\\", nonsense, nonsense, nonsense, 0, nonsense}, spans);
  }
  Tell("node1", -3'600'000'000'000, spans);
  ASSERT_TRUE(timeline_->Finish(Facts(), At(5)).ok());
  for (const Json& event : Events()) EXPECT_GE(event["dur"], 0) << event;
}

TEST_F(TimelineTest, EachSpanHasItsName) {
  Make();
  v1::Spans spans;
  Add({16, "load", kLaunch + 30, 5}, spans);
  Add({1, "", 10, 5}, spans);
  Add({17, "", -20, 5}, spans);
  Add({2, "weights", 1, 5}, spans);
  Tell("node1", 0, spans);
  ASSERT_TRUE(timeline_->Finish(Facts(), At(5)).ok());
  std::vector<std::string> names;
  std::vector<double> begins;
  std::vector<int> numbers;
  for (const Json& event : Events()) {
    names.push_back(event["name"]);
    begins.push_back(event["ts"]);
    if (event.contains("args")) numbers.push_back(event["args"]["number"]);
  }
  EXPECT_THAT(names, ElementsAre("load", "allreduce", "fusion", "broadcast weights"));
  EXPECT_THAT(begins, ElementsAre(0.030, 0.040, 0.020, 0.021));
  EXPECT_THAT(numbers, ElementsAre(8, 12, 16));
}

TEST_F(TimelineTest, WhatIsToldIsInTheFileAtOnce) {
  Make();
  Tell("node1", 0, Spans(0, 100, 10));
  std::ifstream in(path_);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  EXPECT_THAT(text, HasSubstr("\"name\":\"transfer\""));
  EXPECT_EQ(text.back(), '}');
}

TEST_F(TimelineTest, WhatIsNoSpansIsToldWithItsHost) {
  Make();
  Tell("node1", 0, Spans(0, 100, 10));
  timeline_->AddSpans("node2", 0, "\xff");
  v1::Spans short_column = Spans(1, 100, 10);
  short_column.clear_wait_nanos();
  Tell("node3", 0, short_column);
  v1::Spans short_names = Spans(1, 100, 10);
  short_names.set_name_bytes(0, 100);
  Tell("node4", 0, short_names);
  v1::Spans no_rank = Spans(4'000'000'000, 100, 10);
  Tell("node5", 0, no_rank);
  v1::Spans long_name;
  long_name.set_rank(1);
  Add({1, std::string(41, 'a')}, long_name);
  Tell("node6", 0, long_name);
  EXPECT_THAT(std::string(timeline_->Finish(Facts(), At(5)).message()),
              HasSubstr("trace.json lacks spans of node2, node3, node4, node5, node6: their data "
                        "cannot be read"));
  EXPECT_EQ(Events().front()["args"]["number"], 4);
}

TEST_F(TimelineTest, WithoutSpansAFileOfHorovodsNameIsLeftAlone) {
  Make(true);
  timeline_->NodeReached(NodeId(0), "node1", "connect", At(20));
  EXPECT_TRUE(timeline_->Finish(Facts(), At(500)).ok());
  EXPECT_NE(access(path_.c_str(), F_OK), 0);
}

TEST_F(TimelineTest, WhatIsNoSpansIsToldWithoutAFileToo) {
  Make(true);
  timeline_->AddSpans("node2", 0, "\xff");
  EXPECT_THAT(std::string(timeline_->Finish(Facts(), At(5)).message()),
              HasSubstr("lacks spans of node2"));
  EXPECT_NE(access(path_.c_str(), F_OK), 0);
}

TEST_F(TimelineTest, TheFirstSpanBringsWhatWasBefore) {
  Make(true);
  timeline_->NodeReached(NodeId(0), "node1", "connect", At(20));
  Tell("node1", 0, Spans(0, 100, 10));
  EXPECT_TRUE(timeline_->Finish(Facts(), At(500)).ok());
  EXPECT_EQ(Events().front()["name"], "connect");
}

TEST_F(TimelineTest, DroppedSpansAreTold) {
  Make();
  v1::Spans spans = Spans(2, 1, 1);
  spans.set_dropped(77);
  Tell("node2", 0, spans);
  End(2);
  EXPECT_THAT(std::string(timeline_->Finish(Facts(), At(5)).message()),
              HasSubstr("is missing 77 spans"));
  EXPECT_EQ(Events().back()["args"]["dropped_spans"], 77);
}

TEST_F(TimelineTest, AFullDiskIsToldOnce) {
  path_ = "/dev/full";
  Make();
  for (int i = 0; i < 1000; ++i) Tell("node1", 0, Spans(0, i, 1));
  EXPECT_THAT(std::string(timeline_->Finish(Facts(), At(5)).message()),
              HasSubstr("write the timeline /dev/full: No space left on device"));
  path_ = directory_ + "/none";
}

TEST_F(TimelineTest, AFileThatCannotBeMadeIsTold) {
  timeline_ = std::make_unique<Timeline>(directory_ + "/no/dir", false, At(0), kLaunch);
  timeline_->NodeReached(NodeId(0), "node1", "connect", At(20));
  EXPECT_THAT(std::string(timeline_->Finish(Facts(), At(5)).message()), HasSubstr("/no/dir"));
}

}  // namespace
}  // namespace dtrain::report
