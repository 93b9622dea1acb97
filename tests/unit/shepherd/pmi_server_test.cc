// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/pmi_service.h"

namespace dtrain::shepherd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::JobPart Part(std::vector<uint32_t> ranks) {
  v1::JobPart part;
  part.set_job_id("my job");
  part.set_attempt(2);
  part.set_universe_size(32);
  part.set_process_mapping("(vector,(0,2,8))");
  for (uint32_t rank : ranks) part.add_workers()->set_rank(rank);
  return part;
}

class PmiServerTest : public ::testing::Test {
 protected:
  explicit PmiServerTest(std::vector<uint32_t> ranks = {4, 5}) : server_(Part(std::move(ranks))) {}

  // The one reply that a line has.
  std::string Ask(uint32_t rank, absl::string_view line) {
    auto actions = server_.OnMessage(rank, line);
    EXPECT_THAT(actions, SizeIs(1));
    if (actions.size() != 1 || !std::holds_alternative<PmiServer::Reply>(actions[0])) return "";
    EXPECT_EQ(std::get<PmiServer::Reply>(actions[0]).rank, rank);
    return std::get<PmiServer::Reply>(actions[0]).message;
  }
  static v1::FenceEnter Enter(const PmiServer::Actions& actions) {
    for (const auto& action : actions) {
      if (auto* enter = std::get_if<v1::FenceEnter>(&action)) return *enter;
    }
    ADD_FAILURE() << "no fence was entered";
    return {};
  }
  static std::vector<uint32_t> BarrierOut(const PmiServer::Actions& actions) {
    std::vector<uint32_t> out;
    for (const auto& action : actions) {
      const auto& reply = std::get<PmiServer::Reply>(action);
      EXPECT_EQ(reply.message, "cmd=barrier_out\n");
      out.push_back(reply.rank);
    }
    return out;
  }
  v1::FenceRelease Release(uint32_t sequence,
                           std::vector<std::pair<std::string, std::string>> entries = {}) {
    v1::FenceRelease release;
    release.set_sequence(sequence);
    for (auto& [key, value] : entries) {
      v1::KeyValue* entry = release.add_entries();
      entry->set_key(key);
      entry->set_value(value);
    }
    return release;
  }
  PmiServer server_;
};

TEST_F(PmiServerTest, AnswersTheStart) {
  EXPECT_EQ(Ask(4, "cmd=init pmi_version=1 pmi_subversion=1"),
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
  EXPECT_EQ(Ask(4, "cmd=init pmi_version=1 pmi_subversion=2"),
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
  EXPECT_EQ(Ask(4, "cmd=get_maxes"), "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n");
  EXPECT_EQ(Ask(4, "cmd=get_appnum"), "cmd=appnum appnum=0\n");
  EXPECT_EQ(Ask(4, "cmd=get_my_kvsname"), "cmd=my_kvsname kvsname=my_job_2\n");
  EXPECT_EQ(Ask(4, "cmd=get_universe_size"), "cmd=universe_size size=32\n");
  EXPECT_EQ(Ask(4, "cmd=finalize"), "cmd=finalize_ack\n");
}

TEST_F(PmiServerTest, KnowsWhoIsInsideAWorld) {
  EXPECT_EQ(server_.WorldOf(4), v1::WorkerExit::WORLD_UNSPECIFIED);
  Ask(4, "cmd=init pmi_version=1 pmi_subversion=1");
  EXPECT_EQ(server_.WorldOf(4), v1::WorkerExit::WORLD_INSIDE);
  Ask(4, "cmd=finalize");
  EXPECT_EQ(server_.WorldOf(4), v1::WorkerExit::WORLD_LEFT);
  Ask(4, "cmd=init pmi_version=1 pmi_subversion=1");
  EXPECT_EQ(server_.WorldOf(4), v1::WorkerExit::WORLD_INSIDE);
  // libdtrain, which needs no goodbye.
  Ask(4, "cmd=get kvsname=my_job_2 key=dtrain_rejoin");
  EXPECT_EQ(server_.WorldOf(4), v1::WorkerExit::WORLD_UNSPECIFIED);
  Ask(5, "cmd=init pmi_version=2 pmi_subversion=0");
  EXPECT_EQ(server_.WorldOf(5), v1::WorkerExit::WORLD_INSIDE);
}

TEST_F(PmiServerTest, RefusesAnotherProtocolVersion) {
  EXPECT_EQ(Ask(4, "cmd=init pmi_version=3 pmi_subversion=0"),
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1\n");
  EXPECT_EQ(Ask(4, "cmd=get_appnum"), "cmd=appnum appnum=0\n");
}

TEST_F(PmiServerTest, PutsAndGets) {
  EXPECT_EQ(Ask(4, "cmd=put kvsname=my_job_2 key=k value=v=1"),
            "cmd=put_result rc=0 msg=success\n");
  EXPECT_EQ(Ask(5, "cmd=get kvsname=my_job_2 key=k"),
            "cmd=get_result rc=0 msg=success value=v=1\n");
  EXPECT_EQ(Ask(5, "cmd=get kvsname=my_job_2 key=none"),
            "cmd=get_result rc=-1 msg=key_none_not_found value=unknown\n");
}

TEST_F(PmiServerTest, AnswersTheProcessMapping) {
  EXPECT_EQ(Ask(5, "cmd=get kvsname=my_job_2 key=PMI_process_mapping"),
            "cmd=get_result rc=0 msg=success value=(vector,(0,2,8))\n");
  v1::JobPart part = Part({0});
  part.clear_process_mapping();
  PmiServer without(part);
  auto actions = without.OnMessage(0, "cmd=get kvsname=my_job_2 key=PMI_process_mapping");
  EXPECT_THAT(std::get<PmiServer::Reply>(actions[0]).message, HasSubstr("rc=-1"));
}

TEST_F(PmiServerTest, RefusesBadPutsAndGetsWithAnAnswer) {
  EXPECT_THAT(Ask(4, "cmd=put kvsname=other key=k value=v"), HasSubstr("unknown_kvsname"));
  EXPECT_THAT(Ask(4, "cmd=put kvsname=my_job_2 value=v"), HasSubstr("bad_key"));
  EXPECT_THAT(Ask(4, "cmd=put kvsname=my_job_2 key=k"), HasSubstr("no_value"));
  EXPECT_THAT(Ask(4, "cmd=get kvsname=other key=k"), HasSubstr("unknown_kvsname"));
  EXPECT_THAT(Ask(4, absl::StrCat("cmd=get kvsname=my_job_2 key=", std::string(80, 'k'))),
              HasSubstr("bad_key"));
}

TEST_F(PmiServerTest, EveryAnswerFitsALine) {
  v1::JobPart part = Part({0});
  part.set_job_id("j");
  PmiServer server(part);
  for (size_t n = 900; n < 1000; ++n) {
    std::string put = absl::StrCat("cmd=put kvsname=j_2 key=k value=", std::string(n, 'v'));
    if (put.size() >= kPmiLineMax) break;
    (void)server.OnMessage(0, put);
    auto actions = server.OnMessage(0, "cmd=get kvsname=j_2 key=k");
    EXPECT_LE(std::get<PmiServer::Reply>(actions[0]).message.size(), kPmiLineMax);
  }
}

TEST_F(PmiServerTest, TheLastLocalRankEntersTheFenceWithAllPuts) {
  Ask(4, "cmd=put kvsname=my_job_2 key=a value=1");
  Ask(5, "cmd=put kvsname=my_job_2 key=b value=2");
  EXPECT_THAT(server_.OnMessage(4, "cmd=barrier_in"), IsEmpty());
  v1::FenceEnter enter = Enter(server_.OnMessage(5, "cmd=barrier_in"));
  EXPECT_EQ(enter.sequence(), 0u);
  ASSERT_EQ(enter.entries_size(), 2);
  EXPECT_EQ(enter.entries(0).key(), "a");
  EXPECT_EQ(enter.entries(1).value(), "2");

  auto released = server_.OnFenceRelease(Release(0, {{"a", "1"}, {"b", "2"}, {"far", "9"}}));
  EXPECT_THAT(BarrierOut(released), ElementsAre(4, 5));
  EXPECT_THAT(Ask(4, "cmd=get kvsname=my_job_2 key=far"), HasSubstr("value=9\n"));

  // The next fence carries only what is new.
  Ask(4, "cmd=put kvsname=my_job_2 key=c value=3");
  EXPECT_THAT(server_.OnMessage(5, "cmd=barrier_in"), IsEmpty());
  enter = Enter(server_.OnMessage(4, "cmd=barrier_in"));
  EXPECT_EQ(enter.sequence(), 1u);
  ASSERT_EQ(enter.entries_size(), 1);
  EXPECT_EQ(enter.entries(0).key(), "c");
}

TEST_F(PmiServerTest, ReleasesOfAnotherFenceAreIgnored) {
  EXPECT_THAT(server_.OnFenceRelease(Release(0)), IsEmpty());
  (void)server_.OnMessage(4, "cmd=barrier_in");
  (void)server_.OnMessage(5, "cmd=barrier_in");
  EXPECT_THAT(server_.OnFenceRelease(Release(1)), IsEmpty());
  EXPECT_THAT(BarrierOut(server_.OnFenceRelease(Release(0))), ElementsAre(4, 5));
  EXPECT_THAT(server_.OnFenceRelease(Release(0)), IsEmpty());
}

TEST_F(PmiServerTest, ABarrierDoesNotWaitForWhoIsGone) {
  EXPECT_THAT(server_.OnMessage(4, "cmd=barrier_in"), IsEmpty());
  EXPECT_EQ(Enter(server_.OnGone(5)).sequence(), 0u);
  EXPECT_THAT(server_.OnGone(5), IsEmpty());
  EXPECT_THAT(BarrierOut(server_.OnFenceRelease(Release(0))), ElementsAre(4));
}

TEST_F(PmiServerTest, ARankMayJoinAgainAfterItsGoodbyeAndIsToldSo) {
  EXPECT_EQ(Ask(4, "cmd=get kvsname=my_job_2 key=dtrain_rejoin"),
            "cmd=get_result rc=0 msg=success value=1\n");
  for (uint32_t rank : {4u, 5u}) {
    Ask(rank, "cmd=init pmi_version=1 pmi_subversion=1");
    EXPECT_EQ(Ask(rank, "cmd=finalize"), "cmd=finalize_ack\n");
  }
  EXPECT_THAT(server_.OnMessage(4, "cmd=barrier_in"), IsEmpty())
      << "not before it has greeted again";
  EXPECT_THAT(Ask(4, "cmd=init pmi_version=1 pmi_subversion=1"), HasSubstr("rc=0"));
  EXPECT_THAT(server_.OnMessage(4, "cmd=barrier_in"), IsEmpty()) << "rank 5 has yet to come";
  EXPECT_THAT(Ask(5, "cmd=init pmi_version=1 pmi_subversion=1"), HasSubstr("rc=0"));
  Enter(server_.OnMessage(5, "cmd=barrier_in"));
  EXPECT_THAT(BarrierOut(server_.OnFenceRelease(Release(0))), ElementsAre(4, 5));
}

TEST_F(PmiServerTest, ABarrierAfterJoiningAgainDoesNotWaitForWhoHasEndedInstead) {
  for (uint32_t rank : {4u, 5u}) {
    Ask(rank, "cmd=init pmi_version=1 pmi_subversion=1");
    Ask(rank, "cmd=finalize");
  }
  Ask(4, "cmd=init pmi_version=1 pmi_subversion=1");
  EXPECT_THAT(server_.OnMessage(4, "cmd=barrier_in"), IsEmpty());
  Enter(server_.OnGone(5));
}

TEST_F(PmiServerTest, NothingIsEnteredWhenNobodyIsLeft) {
  EXPECT_THAT(server_.OnGone(4), IsEmpty());
  EXPECT_THAT(server_.OnGone(5), IsEmpty());
}

TEST_F(PmiServerTest, AnAbortIsPassedOnWithItsCode) {
  auto actions = server_.OnMessage(4, "cmd=abort exitcode=7");
  ASSERT_THAT(actions, SizeIs(2));
  EXPECT_EQ(std::get<PmiServer::Abort>(actions[1]).rank, 4u);
  EXPECT_EQ(std::get<PmiServer::Abort>(actions[1]).code, 7);
  // On its way out it is held up by nothing, and takes no part in the others' barrier.
  EXPECT_EQ(Ask(4, "cmd=barrier_in"), "cmd=barrier_out\n");
  EXPECT_THAT(server_.OnMessage(5, "cmd=barrier_in"), IsEmpty());
}

// As MPICH 4.2 sends an error stack.
TEST_F(PmiServerTest, WhyItAbortsMayTakeSeveralLines) {
  auto actions = server_.OnMessage(4,
                                   "cmd=abort exitcode=15 message=Fatal error in internal_Barrier: "
                                   "Other MPI error, error stack:");
  ASSERT_THAT(actions, SizeIs(2));
  EXPECT_EQ(std::get<PmiServer::Abort>(actions[1]).code, 15);
  for (absl::string_view line : {"internal_Barrier(84).: MPI_Barrier(MPI_COMM_WORLD) failed", "",
                                 "recv(174): a = b, connection to rank 5 lost"}) {
    EXPECT_THAT(server_.OnMessage(4, line), IsEmpty()) << line;
  }
  EXPECT_EQ(Ask(4, "cmd=barrier_in"), "cmd=barrier_out\n");
}

TEST_F(PmiServerTest, ThereIsNoNameService) {
  EXPECT_EQ(Ask(4, "cmd=publish_name service=s port=p"),
            "cmd=publish_result rc=1 msg=no_name_service\n");
  EXPECT_EQ(Ask(4, "cmd=unpublish_name service=s"),
            "cmd=unpublish_result rc=1 msg=no_name_service\n");
  EXPECT_EQ(Ask(4, "cmd=lookup_name service=s"), "cmd=lookup_result rc=1 msg=no_name_service\n");
}

TEST_F(PmiServerTest, ASpawnIsRefusedAfterItsLastLine) {
  for (absl::string_view line :
       {"mcmd=spawn", "nprocs=2", "execname=x", "totspawns=2", "spawnssofar=1", "arg1=a b c",
        "endcmd", "mcmd=spawn", "totspawns=2", "spawnssofar=2"}) {
    EXPECT_THAT(server_.OnMessage(4, line), IsEmpty()) << line;
  }
  EXPECT_EQ(Ask(4, "endcmd"), "cmd=spawn_result rc=1 errcodes=1\n");
  EXPECT_EQ(Ask(4, "cmd=get_appnum"), "cmd=appnum appnum=0\n");
}

TEST_F(PmiServerTest, AMalformedLineDropsItsRankAlone) {
  auto actions = server_.OnMessage(4, "GET / HTTP/1.1");
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_EQ(std::get<PmiServer::Drop>(actions[0]).rank, 4u);
  EXPECT_THAT(server_.OnMessage(4, "cmd=get_appnum"), IsEmpty());
  EXPECT_EQ(Ask(5, "cmd=get_appnum"), "cmd=appnum appnum=0\n");
  // It lives, so the barrier is not complete without it.
  EXPECT_THAT(server_.OnMessage(5, "cmd=barrier_in"), IsEmpty());
  EXPECT_EQ(Enter(server_.OnGone(4)).sequence(), 0u);
}

TEST_F(PmiServerTest, AnUnknownCommandDropsItsRank) {
  auto actions = server_.OnMessage(4, "cmd=singinit pmi_version=1");
  ASSERT_THAT(actions, SizeIs(1));
  EXPECT_THAT(std::get<PmiServer::Drop>(actions[0]).why, HasSubstr("singinit"));
}

TEST_F(PmiServerTest, PutsWithoutEndAreRefused) {
  std::string last;
  for (int i = 0; i < 40000 && last.find("rc=-1") == std::string::npos; ++i) {
    last =
        Ask(4, absl::StrCat("cmd=put kvsname=my_job_2 key=k", i, " value=", std::string(900, 'v')));
  }
  EXPECT_THAT(last, HasSubstr("no_room"));
}

TEST(PmiServerRandomTest, BarriersStayTogetherWhateverIsSent) {
  unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const std::vector<std::string> lines = {"cmd=init pmi_version=1 pmi_subversion=1",
                                          "cmd=get_maxes",
                                          "cmd=barrier_in",
                                          "cmd=barrier_in",
                                          "cmd=barrier_in",
                                          "cmd=put kvsname=my_job_2 key=k value=v",
                                          "cmd=get kvsname=my_job_2 key=k",
                                          "cmd=get_universe_size"};
  for (int run = 0; run < 200; ++run) {
    PmiServer server(Part({0, 1, 2, 3}));
    uint32_t next = 0;
    bool entered = false;
    for (int step = 0; step < 300; ++step) {
      PmiServer::Actions actions;
      if (entered && random() % 3 == 0) {
        v1::FenceRelease release;
        release.set_sequence(next);
        actions = server.OnFenceRelease(release);
        ASSERT_FALSE(actions.empty());
        entered = false;
        ++next;
      } else {
        actions = server.OnMessage(random() % 4, lines[random() % lines.size()]);
      }
      for (const auto& action : actions) {
        ASSERT_FALSE(std::holds_alternative<PmiServer::Drop>(action));
        if (auto* enter = std::get_if<v1::FenceEnter>(&action)) {
          ASSERT_FALSE(entered);
          ASSERT_EQ(enter->sequence(), next);
          entered = true;
        }
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::shepherd
