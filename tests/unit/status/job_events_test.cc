// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/job_events.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/unit/report/facts_fixture.h"

namespace dtrain::status {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class JobEventsTest : public report::FactsTest {
 protected:
  void Observe(std::optional<NodeId> of, int ms) { events_.Observe(Facts(), of, At(ms)); }

  // "phase connect", "lost node2"
  std::vector<std::string> Told() const {
    std::vector<std::string> out;
    for (const auto& event : events_.log().Since(0)) {
      out.push_back(absl::StrCat(event["kind"].get<std::string>(), " ", event.value("host", ""),
                                 event.value("text", "")));
    }
    return out;
  }
  JobEvents events_{At(0)};
};

TEST_F(JobEventsTest, TellsPhasesAsTheyBegan) {
  Phase(job::State::kConnecting, 0, 250);
  Phase(job::State::kProbing, 250);
  Observe(std::nullopt, 400);
  Observe(std::nullopt, 500);
  EXPECT_THAT(Told(), ElementsAre("phase connect", "phase check network"));
  EXPECT_EQ(events_.log().Since(1)[0]["seconds"], 0.25);
}

TEST_F(JobEventsTest, TellsOfANodeAtItsEventAndOfOthersWithinASecond) {
  Observe(std::nullopt, 1000);
  nodes_[0].suspect = nodes_[1].suspect = true;
  Observe(NodeId(1), 1100);
  EXPECT_THAT(Told(), ElementsAre("silent node2"));
  Observe(std::nullopt, 2000);
  EXPECT_THAT(Told(), ElementsAre("silent node2", "silent node1"));
  nodes_[0].suspect = false;
  nodes_[1].gone = true;
  Observe(NodeId(0), 2100);
  Observe(NodeId(1), 2100);
  nodes_[1].gone = false;  // does not happen
  Observe(NodeId(1), 4200);
  EXPECT_THAT(Told(), ElementsAre("silent node2", "silent node1", "heard node1", "lost node2"));
}

// As hosts that leave an elastic job, or have no rank.
TEST_F(JobEventsTest, ANodeThatWasLetGoIsNotLost) {
  Phase(job::State::kRunning, 0);
  nodes_[0].gone = nodes_[1].gone = true;
  nodes_[1].let_go = true;
  Observe(NodeId(0), 1100);
  Observe(NodeId(1), 1100);
  EXPECT_THAT(Told(), ElementsAre("phase run", "lost node1"));
}

// Whatever was seen in the attempt before is news of the next.
TEST_F(JobEventsTest, AnAttemptBeginsAnew) {
  Phase(job::State::kConnecting, 0, 250);
  Phase(job::State::kRunning, 250);
  warnings_ = {"one"};
  nodes_[1].gone = true;
  Observe(NodeId(1), 300);
  events_.AttemptEnded(Facts(), "node2: gone", At(400));
  phases_.clear();
  Phase(job::State::kConnecting, 500);
  nodes_.pop_back();
  ranks_.resize(2);
  events_.AttemptBegins(1, At(500));
  Observe(std::nullopt, 600);
  EXPECT_THAT(Told(),
              ElementsAre("phase connect", "phase run", "warning one", "lost node2",
                          "restart node2: gone", "attempt ", "phase connect", "warning one"));
  EXPECT_EQ(events_.log().Since(5)[0]["attempt"], 1);
}

// A job that is refused has no plan, and lets go of its nodes all the same.
TEST_F(JobEventsTest, NodesThatGoBeforeThereIsARankAreNotLost) {
  ranks_.clear();
  Observe(NodeId(0), 10);
  state_ = job::State::kFinished;
  nodes_[0].gone = nodes_[1].gone = true;
  Observe(NodeId(0), 20);
  Observe(std::nullopt, 2000);
  EXPECT_THAT(Told(), IsEmpty());
}

// Their connections end, but nothing is lost with them.
TEST_F(JobEventsTest, NodesThatGoWhenTheirRanksHaveEndedAreNotLost) {
  state_ = job::State::kRunning;
  Observe(std::nullopt, 0);
  state_ = job::State::kStopping;
  for (const uint32_t rank : {0, 1, 2}) {
    End(rank).set_exit_code(0);
    events_.RankEnded(Facts(), Rank(rank), At(10));
  }
  nodes_[0].gone = nodes_[1].gone = true;
  Observe(NodeId(0), 20);
  Observe(NodeId(1), 20);
  EXPECT_THAT(Told(), ElementsAre("lost node2"));
}

TEST_F(JobEventsTest, TellsEachWarningOnce) {
  warnings_ = {"one"};
  Observe(std::nullopt, 0);
  warnings_.push_back("two");
  Observe(NodeId(7), 10);
  EXPECT_THAT(Told(), ElementsAre("warning one", "warning two"));
}

TEST_F(JobEventsTest, TellsOfRanksThatFailByThemselves) {
  End(0).set_exit_code(0);
  End(1).set_exit_code(3);
  End(2).set_signal(15);
  ranks_[2].exit.set_told_to_stop(true);
  for (uint32_t rank = 0; rank < 4; ++rank) events_.RankEnded(Facts(), Rank(rank), At(100));
  EXPECT_THAT(Told(), ElementsAre("rank node1exited with code 3"));
  for (int i = 0; i < 500; ++i) events_.RankEnded(Facts(), Rank(1), At(100));
  EXPECT_EQ(Told().size(), 100u);
}

TEST_F(JobEventsTest, TheEndHasTheReportAndTheColumns) {
  End(1).set_exit_code(3);
  verdict_.kind = job::Verdict::Kind::kWorker;
  verdict_.rank = Rank(1);
  verdict_.exit_code = 3;
  events_.JobEnded(Facts(), {{"version", 9}}, At(5000));
  const auto event = events_.log().Since(0)[0];
  EXPECT_EQ(event["kind"], "ended");
  EXPECT_EQ(event["exit_code"], 3);
  EXPECT_EQ(event["verdict"], "worker");
  EXPECT_EQ(event["rank"], 1);
  EXPECT_EQ(event["columns"]["version"], 9);
  EXPECT_THAT(event["report"].get<std::string>(), HasSubstr("rank 1 on node1"));
}

TEST_F(JobEventsTest, ReadersGetThemAsTheyCome) {
  EventFeeds feeds(events_.log());
  auto feed = feeds.Follow(0);
  int woken = 0;
  feed->Notify([&] { ++woken; });
  feeds.Wake();
  EXPECT_EQ(woken, 0);
  Phase(job::State::kConnecting, 0);
  Observe(std::nullopt, 0);
  feeds.Wake();
  feeds.Wake();
  EXPECT_EQ(woken, 1);
  EXPECT_THAT(feed->Next(1000), HasSubstr("\"connect\""));
  EXPECT_EQ(feed->Next(1000), "");
  EXPECT_FALSE(feed->ended());
  feed->Notify([&] { ++woken; });
  feeds.End();
  EXPECT_EQ(woken, 2);
  EXPECT_TRUE(feed->ended());
}

TEST_F(JobEventsTest, AReaderMayGoWhenAnotherIsWoken) {
  EventFeeds feeds(events_.log());
  auto first = feeds.Follow(0);
  auto second = feeds.Follow(0);
  first->Notify([&] { second.reset(); });
  second->Notify([&] { first.reset(); });
  feeds.End();
  EXPECT_EQ((first == nullptr) + (second == nullptr), 1);
}

// A number that has not been is another launcher's.
TEST_F(JobEventsTest, AStrangeNumberGetsAll) {
  warnings_ = {"one"};
  Observe(std::nullopt, 0);
  EventFeeds feeds(events_.log());
  EXPECT_THAT(feeds.Follow(77)->Next(1000), HasSubstr("one"));
  EXPECT_THAT(feeds.Follow(1)->Next(1000), IsEmpty());
}

}  // namespace
}  // namespace dtrain::status
