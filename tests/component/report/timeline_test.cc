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
  // Milliseconds since the launch, on a node whose clock is `ahead_ms` ahead.
  static v1::Spans Spans(uint32_t rank, int begin_ms, int ms, int ahead_ms = 0) {
    v1::Spans spans;
    spans.set_rank(rank);
    v1::Span& span = *spans.add_spans();
    span.set_kind(1);
    span.set_number(4);
    span.set_bytes(1024);
    span.set_name("grad \"a\"\xff");
    span.set_begin_unix_nanos(kLaunch + int64_t{begin_ms + ahead_ms} * 1'000'000);
    span.set_duration_nanos(int64_t{ms} * 1'000'000);
    span.set_wait_nanos(1'000'000);
    span.set_transfer_nanos(int64_t{ms} * 1'000'000);  // longer than what is left of the span
    return spans;
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
  timeline_->AddSpans("node2", 3'600'000'000'000, Spans(3, 100, 10, 3'600'000));
  Phase(job::State::kConnecting, 0, 20);
  Phase(job::State::kRunning, 20, 500);
  v1::WorkerExit& exit = End(3);
  nodes_[1].clock_ahead_nanos = 3'600'000'000'000;
  exit.set_unix_nanos(kLaunch + 3'600'400'000'000);
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
  spans.mutable_spans(0)->set_begin_unix_nanos(kLaunch + 3'600'000'000'001);
  timeline_->AddSpans("node1", 0, spans);
  spans.mutable_spans(0)->set_begin_unix_nanos(kLaunch - 1);
  timeline_->AddSpans("node1", 0, spans);
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
    v1::Span& span = *spans.add_spans();
    span.set_kind(99);
    span.set_begin_unix_nanos(nonsense);
    span.set_duration_nanos(nonsense);
    span.set_wait_nanos(nonsense);
    span.set_reduce_nanos(nonsense);
    span.set_name("\x01\\");
  }
  timeline_->AddSpans("node1", -3'600'000'000'000, spans);
  ASSERT_TRUE(timeline_->Finish(Facts(), At(5)).ok());
  for (const Json& event : Events()) EXPECT_GE(event["dur"], 0) << event;
}

TEST_F(TimelineTest, WithoutSpansAFileOfHorovodsNameIsLeftAlone) {
  Make(true);
  timeline_->NodeReached(NodeId(0), "node1", "connect", At(20));
  EXPECT_TRUE(timeline_->Finish(Facts(), At(500)).ok());
  EXPECT_NE(access(path_.c_str(), F_OK), 0);
}

TEST_F(TimelineTest, TheFirstSpanBringsWhatWasBefore) {
  Make(true);
  timeline_->NodeReached(NodeId(0), "node1", "connect", At(20));
  timeline_->AddSpans("node1", 0, Spans(0, 100, 10));
  EXPECT_TRUE(timeline_->Finish(Facts(), At(500)).ok());
  EXPECT_EQ(Events().front()["name"], "connect");
}

TEST_F(TimelineTest, DroppedSpansAreTold) {
  Make();
  v1::Spans spans = Spans(2, 1, 1);
  spans.set_dropped(77);
  timeline_->AddSpans("node2", 0, spans);
  End(2);
  EXPECT_THAT(std::string(timeline_->Finish(Facts(), At(5)).message()),
              HasSubstr("lacks 77 spans"));
  EXPECT_EQ(Events().back()["args"]["dropped_spans"], 77);
}

TEST_F(TimelineTest, AFullDiskIsToldOnce) {
  path_ = "/dev/full";
  Make();
  for (int i = 0; i < 1000; ++i) timeline_->AddSpans("node1", 0, Spans(0, i, 1));
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
