// SPDX-License-Identifier: Apache-2.0
// Workers that speak PMI-2, alone and beside others that speak PMI-1.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/shepherd/pmi2_requests.h"
#include "agent/shepherd/pmi_service.h"

namespace dtrain::shepherd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::string_view kGreeting = "cmd=init pmi_version=2 pmi_subversion=0";

v1::JobPart Pmi2Part(const std::vector<uint32_t>& ranks) {
  v1::JobPart part;
  part.set_job_id("my job");
  part.set_attempt(2);
  part.set_world_size(16);
  part.set_universe_size(32);
  part.set_process_mapping("(vector,(0,2,8))");
  for (uint32_t rank : ranks) part.add_workers()->set_rank(rank);
  return part;
}

std::string Framed(absl::string_view body) { return absl::StrFormat("%-6d%s", body.size(), body); }

// What a message says, without the header of a frame.
std::string Body(absl::string_view message) {
  const bool frame = message.substr(0, 4) != "cmd=";
  EXPECT_TRUE(!frame || Pmi2FrameSize(message) == message.size()) << message;
  return std::string(frame ? message.substr(kPmi2HeaderSize) : message);
}

class Pmi2ServerTest : public ::testing::Test {
 protected:
  PmiServer::Actions Send(uint32_t rank, absl::string_view body) {
    return server_.OnMessage(rank, Framed(body));
  }
  // The one reply that a request has.
  std::string Ask(uint32_t rank, absl::string_view body) {
    auto actions = Send(rank, body);
    EXPECT_THAT(actions, SizeIs(1)) << body;
    if (actions.size() != 1 || !std::holds_alternative<PmiServer::Reply>(actions[0])) return "";
    EXPECT_EQ(std::get<PmiServer::Reply>(actions[0]).rank, rank);
    return Body(std::get<PmiServer::Reply>(actions[0]).message);
  }
  void Join(uint32_t rank) {
    EXPECT_FALSE(server_.SpeaksFrames(rank));
    auto actions = server_.OnMessage(rank, kGreeting);
    ASSERT_THAT(actions, SizeIs(1));
    EXPECT_EQ(std::get<PmiServer::Reply>(actions[0]).message,
              "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n");
    EXPECT_TRUE(server_.SpeaksFrames(rank));
    EXPECT_THAT(Ask(rank, "cmd=fullinit;"), HasSubstr(";rc=0;"));
  }
  void JoinByPmi1(uint32_t rank) {
    auto actions = server_.OnMessage(rank, "cmd=init pmi_version=1 pmi_subversion=1");
    ASSERT_THAT(actions, SizeIs(1));
    EXPECT_FALSE(server_.SpeaksFrames(rank));
  }
  // Why the rank is cut off; after that nothing of it counts.
  std::string Dropped(uint32_t rank, absl::string_view message) {
    auto actions = server_.OnMessage(rank, message);
    if (actions.size() != 1 || !std::holds_alternative<PmiServer::Drop>(actions[0])) {
      ADD_FAILURE() << "it was not cut off";
      return "";
    }
    EXPECT_EQ(std::get<PmiServer::Drop>(actions[0]).rank, rank);
    EXPECT_THAT(server_.OnMessage(rank, Framed("cmd=job-getid;")), IsEmpty());
    return std::get<PmiServer::Drop>(actions[0]).why;
  }
  std::map<std::string, std::string> Entered(const PmiServer::Actions& actions) {
    std::map<std::string, std::string> out;
    if (actions.size() != 1 || !std::holds_alternative<v1::FenceEnter>(actions[0])) {
      ADD_FAILURE() << "no fence was entered";
      return out;
    }
    const auto& enter = std::get<v1::FenceEnter>(actions[0]);
    EXPECT_EQ(enter.sequence(), sequence_);
    for (const auto& entry : enter.entries()) out[entry.key()] = entry.value();
    return out;
  }
  // Who gets what when the next fence is released with these.
  std::map<uint32_t, std::string> Release(const std::map<std::string, std::string>& values = {}) {
    v1::FenceRelease release;
    release.set_sequence(sequence_++);
    for (const auto& [key, value] : values) {
      release.add_entries()->set_key(key);
      release.mutable_entries()->rbegin()->set_value(value);
    }
    std::map<uint32_t, std::string> out;
    for (const auto& action : server_.OnFenceRelease(release)) {
      const auto& reply = std::get<PmiServer::Reply>(action);
      EXPECT_TRUE(out.emplace(reply.rank, Body(reply.message)).second);
    }
    return out;
  }
  PmiServer server_{Pmi2Part({4, 5, 6})};
  uint32_t sequence_ = 0;
};

TEST_F(Pmi2ServerTest, AnswersTheStart) {
  Join(4);
  // The rank is that of the connection, not what the client says.
  EXPECT_EQ(Ask(4, "cmd=fullinit;pmijobid=x;pmirank=9;threaded=FALSE;"),
            "cmd=fullinit-response;rc=0;pmi-version=2;pmi-subversion=0;rank=4;size=16;appnum=0;"
            "debugged=FALSE;pmiverbose=FALSE;");
  EXPECT_EQ(Ask(4, "cmd=job-getid;"), "cmd=job-getid-response;rc=0;jobid=my_job_2;");
  EXPECT_EQ(Ask(4, "cmd=finalize;"), "cmd=finalize-response;rc=0;");
}

TEST_F(Pmi2ServerTest, TheThreadIsEchoed) {
  Join(4);
  EXPECT_EQ(Ask(4, "cmd=job-getid;thrid=0x7f;;1;"),
            "cmd=job-getid-response;thrid=0x7f;;1;rc=0;jobid=my_job_2;");
  EXPECT_EQ(Ask(4, "cmd=spawn;thrid=7;ncmds=1;"),
            "cmd=spawn-response;thrid=7;rc=14;errmsg=not_supported;");
  EXPECT_THAT(Dropped(4, Framed(absl::StrCat("cmd=job-getid;thrid=", std::string(65, 'x'), ";"))),
              HasSubstr("thrid"));
}

TEST_F(Pmi2ServerTest, PutsAndGets) {
  Join(4);
  Join(5);
  EXPECT_EQ(Ask(4, "cmd=kvs-put;key=k;value=v=1;;2 3\n;"), "cmd=kvs-put-response;rc=0;");
  EXPECT_EQ(Ask(5, "cmd=kvs-get;jobid=my_job_2;srcid=4;key=k;"),
            "cmd=kvs-get-response;rc=0;found=TRUE;value=v=1;;2 3\n;");
  EXPECT_EQ(Ask(5, "cmd=kvs-get;jobid=;srcid=-1;key=k;"), Ask(5, "cmd=kvs-get;key=k;"));
  EXPECT_EQ(Ask(5, "cmd=kvs-get;key=none;"), "cmd=kvs-get-response;rc=0;found=FALSE;");
}

TEST_F(Pmi2ServerTest, RefusesBadPutsAndGetsWithAnAnswer) {
  Join(4);
  const std::string longest(kPmiKeyMax, 'k'), value(kPmiValueMax, 'v');
  EXPECT_EQ(Ask(4, absl::StrCat("cmd=kvs-put;key=", longest, ";value=", value, ";")),
            "cmd=kvs-put-response;rc=0;");
  EXPECT_EQ(Ask(4, absl::StrCat("cmd=kvs-get;key=", longest, ";")),
            absl::StrCat("cmd=kvs-get-response;rc=0;found=TRUE;value=", value, ";"));
  EXPECT_EQ(Ask(4, absl::StrCat("cmd=kvs-put;key=k", longest, ";value=v;")),
            "cmd=kvs-put-response;rc=14;errmsg=bad_key;");
  EXPECT_EQ(Ask(4, absl::StrCat("cmd=kvs-put;key=k;value=v", value, ";")),
            "cmd=kvs-put-response;rc=14;errmsg=value_too_long;");
  EXPECT_THAT(Ask(4, "cmd=kvs-put;value=v;"), HasSubstr("errmsg=bad_key;"));
  EXPECT_THAT(Ask(4, "cmd=kvs-put;key=;value=v;"), HasSubstr("errmsg=bad_key;"));
  EXPECT_THAT(Ask(4, "cmd=kvs-put;key=k;"), HasSubstr("errmsg=no_value;"));
  EXPECT_THAT(Ask(4, "cmd=kvs-get;"), HasSubstr("errmsg=bad_key;"));
  EXPECT_THAT(Ask(4, absl::StrCat("cmd=kvs-get;key=k", longest, ";")), HasSubstr("bad_key"));
  EXPECT_THAT(Ask(4, "cmd=kvs-get;jobid=other;key=k;"), HasSubstr("errmsg=unknown_jobid;"));
}

TEST_F(Pmi2ServerTest, JobAttributes) {
  Join(4);
  const std::string found = "cmd=info-getjobattr-response;rc=0;found=TRUE;value=";
  EXPECT_EQ(Ask(4, "cmd=info-getjobattr;key=PMI_process_mapping;"), found + "(vector,(0,2,8));");
  EXPECT_EQ(Ask(4, "cmd=info-getjobattr;key=universeSize;"), found + "32;");
  EXPECT_EQ(Ask(4, "cmd=info-getjobattr;key=hasNameServ;"), found + "FALSE;");
  EXPECT_EQ(Ask(4, "cmd=info-getjobattr;key=physTopology;"),
            "cmd=info-getjobattr-response;rc=0;found=FALSE;");
  EXPECT_THAT(Ask(4, "cmd=info-getjobattr;"), HasSubstr("errmsg=bad_key;"));
}

TEST_F(Pmi2ServerTest, AMappingThatCannotBeWrittenIsNotFound) {
  v1::JobPart part = Pmi2Part({0});
  part.clear_process_mapping();
  PmiServer without(part);
  (void)without.OnMessage(0, kGreeting);
  (void)without.OnMessage(0, Framed("cmd=fullinit;"));
  auto actions = without.OnMessage(0, Framed("cmd=info-getjobattr;key=PMI_process_mapping;"));
  EXPECT_EQ(Body(std::get<PmiServer::Reply>(actions[0]).message),
            "cmd=info-getjobattr-response;rc=0;found=FALSE;");
}

TEST_F(Pmi2ServerTest, NodeAttributes) {
  Join(4);
  Join(5);
  const std::string get = "cmd=info-getnodeattr;key=a;wait=FALSE;";
  EXPECT_EQ(Ask(5, get), "cmd=info-getnodeattr-response;rc=0;found=FALSE;");
  EXPECT_EQ(Ask(5, "cmd=info-getnodeattr;key=a;"), Ask(5, get));
  EXPECT_EQ(Ask(4, "cmd=info-putnodeattr;key=a;value=x y;"), "cmd=info-putnodeattr-response;rc=0;");
  EXPECT_EQ(Ask(5, get), "cmd=info-getnodeattr-response;rc=0;found=TRUE;value=x y;");
  EXPECT_EQ(Ask(5, "cmd=info-getnodeattr;key=a;wait=TRUE;"), Ask(5, get));
  // Not among the job's values.
  EXPECT_THAT(Ask(5, "cmd=kvs-get;key=a;"), HasSubstr("found=FALSE;"));

  EXPECT_THAT(Ask(4, "cmd=info-putnodeattr;value=v;"), HasSubstr("errmsg=bad_key;"));
  EXPECT_THAT(Ask(4, "cmd=info-putnodeattr;key=a;"), HasSubstr("errmsg=no_value;"));
  EXPECT_THAT(
      Ask(4, absl::StrCat("cmd=info-putnodeattr;key=a;value=", std::string(1025, 'v'), ";")),
      HasSubstr("errmsg=value_too_long;"));
  EXPECT_THAT(Ask(4, "cmd=info-getnodeattr;"), HasSubstr("errmsg=bad_key;"));
}

TEST_F(Pmi2ServerTest, WhoWaitsForANodeAttributeIsAnsweredWhenItIsSet) {
  for (uint32_t rank : {4, 5, 6}) Join(rank);
  EXPECT_THAT(Send(5, "cmd=info-getnodeattr;thrid=1;key=a;wait=TRUE;"), IsEmpty());
  EXPECT_THAT(Send(5, "cmd=info-getnodeattr;thrid=2;key=b;wait=TRUE;"), IsEmpty());
  EXPECT_THAT(Send(6, "cmd=info-getnodeattr;key=a;wait=true;"), IsEmpty());
  EXPECT_THAT(Ask(5, "cmd=job-getid;thrid=3;"), HasSubstr("thrid=3;")) << "its other threads go on";

  auto actions = Send(4, "cmd=info-putnodeattr;key=a;value=v;");
  std::vector<std::string> answers;
  for (const auto& action : actions) {
    const auto& reply = std::get<PmiServer::Reply>(action);
    answers.push_back(absl::StrCat(reply.rank, " ", Body(reply.message)));
  }
  const std::string found = "rc=0;found=TRUE;value=v;";
  EXPECT_THAT(answers, ElementsAre("4 cmd=info-putnodeattr-response;rc=0;",
                                   "5 cmd=info-getnodeattr-response;thrid=1;" + found,
                                   "6 cmd=info-getnodeattr-response;" + found));
  // Once; and b is still to come.
  EXPECT_THAT(Send(4, "cmd=info-putnodeattr;key=a;value=w;"), SizeIs(1));
  EXPECT_THAT(Send(4, "cmd=info-putnodeattr;key=b;value=w;"), SizeIs(2));
}

TEST_F(Pmi2ServerTest, WhoHasGoneLeftOrIsCutOffWaitsForNothing) {
  for (uint32_t rank : {4, 5, 6}) {
    Join(rank);
    EXPECT_THAT(Send(rank, "cmd=info-getnodeattr;key=a;wait=TRUE;"), IsEmpty());
  }
  (void)server_.OnGone(4);
  EXPECT_THAT(Ask(5, "cmd=finalize;"), HasSubstr("rc=0"));
  Dropped(6, "      ");
  Join(5);
  EXPECT_THAT(Send(5, "cmd=info-putnodeattr;key=a;value=v;"), SizeIs(1));
}

TEST_F(Pmi2ServerTest, AFenceCarriesAllPuts) {
  for (uint32_t rank : {4, 5, 6}) {
    Join(rank);
    EXPECT_THAT(Ask(rank, absl::StrCat("cmd=kvs-put;key=k", rank, ";value=", rank, ";;;")),
                HasSubstr("rc=0"));
  }
  EXPECT_THAT(Send(5, "cmd=kvs-fence;thrid=9;"), IsEmpty());
  EXPECT_THAT(Send(4, "cmd=kvs-fence;"), IsEmpty());
  EXPECT_EQ(Ask(5, "cmd=kvs-fence;thrid=8;"),
            "cmd=kvs-fence-response;thrid=8;rc=14;errmsg=in_the_fence_already;");
  EXPECT_THAT(Entered(Send(6, "cmd=kvs-fence;")),
              ElementsAre(std::pair("k4", "4;"), std::pair("k5", "5;"), std::pair("k6", "6;")));
  EXPECT_THAT(Release({{"far", "x"}}),
              ElementsAre(std::pair(4, "cmd=kvs-fence-response;rc=0;"),
                          std::pair(5, "cmd=kvs-fence-response;thrid=9;rc=0;"),
                          std::pair(6, "cmd=kvs-fence-response;rc=0;")));
  EXPECT_THAT(Ask(4, "cmd=kvs-get;key=far;"), HasSubstr("found=TRUE;value=x;"));
}

TEST_F(Pmi2ServerTest, BothVersionsMeetInTheSameFences) {
  Join(4);
  JoinByPmi1(5);
  Join(6);
  (void)Send(4, "cmd=kvs-put;key=plain;value=4;");
  (void)Send(4, "cmd=kvs-put;key=blank;value=a b;");
  (void)Send(4, absl::StrCat("cmd=kvs-put;key=long;value=", std::string(kPmiValueMax, 'v'), ";"));
  (void)server_.OnMessage(5, "cmd=put kvsname=my_job_2 key=old value=5;5");
  for (int round = 0; round < 3; ++round) {
    EXPECT_THAT(Send(4, "cmd=kvs-fence;"), IsEmpty());
    EXPECT_THAT(Send(6, "cmd=kvs-fence;"), IsEmpty());
    EXPECT_THAT(Entered(server_.OnMessage(5, "cmd=barrier_in")), SizeIs(round == 0 ? 4 : 0));
    EXPECT_THAT(Release(), ElementsAre(std::pair(4, "cmd=kvs-fence-response;rc=0;"),
                                       std::pair(5, "cmd=barrier_out\n"),
                                       std::pair(6, "cmd=kvs-fence-response;rc=0;")));
  }
  EXPECT_THAT(Ask(6, "cmd=kvs-get;key=old;"), HasSubstr("value=5;;5;"));
  auto get = [&](absl::string_view key) {
    auto actions = server_.OnMessage(5, absl::StrCat("cmd=get kvsname=my_job_2 key=", key));
    return std::get<PmiServer::Reply>(actions.at(0)).message;
  };
  EXPECT_EQ(get("plain"), "cmd=get_result rc=0 msg=success value=4\n");
  // A PMI-1 line can carry neither blanks nor 1024 bytes.
  for (absl::string_view key : {"blank", "long"}) {
    EXPECT_THAT(get(key), HasSubstr("rc=-1 msg=a_PMI-2_value_that_no_line_can_carry"));
  }
}

TEST_F(Pmi2ServerTest, AFenceDoesNotWaitForWhoHasLeftOrIsGone) {
  for (uint32_t rank : {4, 5, 6}) Join(rank);
  EXPECT_THAT(Send(4, "cmd=kvs-fence;"), IsEmpty());
  EXPECT_THAT(Ask(5, "cmd=finalize;"), HasSubstr("rc=0"));
  EXPECT_FALSE(server_.SpeaksFrames(5));
  EXPECT_THAT(Entered(server_.OnGone(6)), IsEmpty());
  EXPECT_THAT(Release(), ElementsAre(std::pair(4, "cmd=kvs-fence-response;rc=0;")));
}

TEST_F(Pmi2ServerTest, ARankMayJoinAgainByEitherVersion) {
  for (uint32_t rank : {4, 5, 6}) {
    Join(rank);
    EXPECT_THAT(Ask(rank, "cmd=finalize;"), HasSubstr("rc=0"));
  }
  JoinByPmi1(4);
  EXPECT_THAT(server_.OnMessage(4, "cmd=barrier_in"), IsEmpty()) << "the others are late";
  Join(5);
  EXPECT_THAT(Send(5, "cmd=kvs-fence;"), IsEmpty());
  EXPECT_THAT(Entered(server_.OnGone(6)), IsEmpty());
  EXPECT_THAT(Release(), ElementsAre(std::pair(4, "cmd=barrier_out\n"),
                                     std::pair(5, "cmd=kvs-fence-response;rc=0;")));
}

TEST_F(Pmi2ServerTest, AnAbortIsWithOrWithoutACode) {
  for (uint32_t rank : {4, 5, 6}) Join(rank);
  auto aborted = [&](uint32_t rank, absl::string_view body) {
    auto actions = Send(rank, body);
    EXPECT_THAT(actions, SizeIs(1));
    EXPECT_EQ(std::get<PmiServer::Abort>(actions.at(0)).rank, rank);
    return std::get<PmiServer::Abort>(actions.at(0)).code;
  };
  EXPECT_EQ(aborted(4, "cmd=abort;exitcode=7;message=help;;;"), 7);     // MPICH
  EXPECT_EQ(aborted(5, "cmd=abort;isworld=TRUE;msg=;"), std::nullopt);  // Slurm
  EXPECT_THAT(Send(6, "cmd=abort;isworld=FALSE;msg=me alone;"), IsEmpty());
  // On its way out it is held up by nothing, and takes no part in the others' fence.
  for (uint32_t rank : {4, 5, 6}) {
    EXPECT_EQ(Ask(rank, "cmd=kvs-fence;"), "cmd=kvs-fence-response;rc=0;");
  }
}

TEST_F(Pmi2ServerTest, WhatTheJobDoesNotHaveIsRefusedAndTheRankGoesOn) {
  Join(4);
  for (absl::string_view name : {"name-publish", "name-unpublish", "name-lookup"}) {
    EXPECT_EQ(Ask(4, absl::StrCat("cmd=", name, ";name=s;port=p;infokeycount=0;")),
              absl::StrCat("cmd=", name, "-response;rc=14;errmsg=no_name_service;"));
  }
  const std::string spawn =
      "cmd=spawn;ncmds=2;preputcount=1;ppkey0=a;ppval0=b;subcmd=/bin/x;maxprocs=2;argc=1;argv0=a b;"
      "subcmd=/bin/y;maxprocs=1;argc=0;infokeycount=1;infokey0=wdir;infoval0=/;";
  EXPECT_EQ(Ask(4, spawn), "cmd=spawn-response;rc=14;errmsg=not_supported;");
  for (absl::string_view name : {"job-connect", "job-disconnect", "ring"}) {
    EXPECT_EQ(Ask(4, absl::StrCat("cmd=", name, ";jobid=x;")),
              absl::StrCat("cmd=", name, "-response;rc=14;errmsg=not_supported;"));
  }
  EXPECT_THAT(Ask(4, "cmd=job-getid;"), HasSubstr("rc=0"));
}

TEST_F(Pmi2ServerTest, WhatIsNoFrameCutsOffItsRankAlone) {
  for (uint32_t rank : {4, 5, 6}) Join(rank);
  // A second PMI2_Init on the same connection.
  EXPECT_THAT(Dropped(4, kGreeting.substr(0, kPmi2HeaderSize)), HasSubstr("cmd=in"));
  EXPECT_THAT(Ask(5, "cmd=job-getid;"), HasSubstr("rc=0"));
  // It lives, so the fence is not complete without it.
  EXPECT_THAT(Send(5, "cmd=kvs-fence;"), IsEmpty());
  EXPECT_THAT(Send(6, "cmd=kvs-fence;"), IsEmpty());
  EXPECT_THAT(Entered(server_.OnGone(4)), IsEmpty());
}

TEST_F(Pmi2ServerTest, UnknownCommandsAndThoseBeforeFullinitCutOffTheirRank) {
  Join(4);
  EXPECT_EQ(Dropped(4, Framed("cmd=concat\n;concatid=1;")), "an unknown command, concat\\n");
  (void)server_.OnMessage(5, kGreeting);
  EXPECT_EQ(Dropped(5, Framed("cmd=kvs-get;key=a;")), "kvs-get before fullinit");
  EXPECT_THAT(Dropped(6, Framed("cmd=fullinit;")), HasSubstr("fullinit")) << "it has not greeted";
}

TEST_F(Pmi2ServerTest, PutsWithoutEndAreRefused) {
  Join(4);
  const std::string value(1000, 'v');
  std::string last;
  for (int i = 0; i < 40000 && last.find("rc=14") == std::string::npos; ++i) {
    last = Ask(4, absl::StrCat("cmd=kvs-put;key=k", i, ";value=", value, ";"));
  }
  EXPECT_THAT(last, HasSubstr("errmsg=no_room;"));
}

TEST_F(Pmi2ServerTest, NodeAttributesWithoutEndAreRefused) {
  Join(4);
  const std::string value(1000, 'v');
  auto put = [&](int i) {
    return Ask(4, absl::StrCat("cmd=info-putnodeattr;key=k", i, ";value=", value, ";"));
  };
  // What is replaced leaves its room.
  for (int i = 0; i < 3000; ++i) ASSERT_THAT(put(0), HasSubstr("rc=0"));
  int i = 1;
  while (i < 3000 && put(i).find("rc=0") != std::string::npos) ++i;
  EXPECT_LT(i, 2000);
  EXPECT_THAT(put(i), HasSubstr("errmsg=no_room;"));
  EXPECT_THAT(put(0), HasSubstr("rc=0"));
}

TEST_F(Pmi2ServerTest, WaitsWithoutEndAreRefused) {
  Join(4);
  Join(5);
  size_t waiting = 0;
  while (waiting < 1000 && Send(4, "cmd=info-getnodeattr;key=a;wait=TRUE;").empty()) ++waiting;
  EXPECT_EQ(waiting, 64u);
  EXPECT_THAT(Ask(4, "cmd=info-getnodeattr;key=a;wait=TRUE;"), HasSubstr("errmsg=too_many_wait;"));
  EXPECT_THAT(Send(5, "cmd=info-putnodeattr;key=a;value=v;"), SizeIs(65));
}

TEST(Pmi2ServerRandomTest, FencesOfBothVersionsStayTogetherWhateverIsSent) {
  unsigned seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const std::vector<std::string> bodies = {"cmd=kvs-fence;",
                                           "cmd=kvs-fence;thrid=1;",
                                           "cmd=kvs-put;key=k;value=v;;;",
                                           "cmd=kvs-get;key=k;",
                                           "cmd=info-getnodeattr;key=a;wait=TRUE;",
                                           "cmd=fullinit;",
                                           "cmd=info-putnodeattr;key=a;value=v;",
                                           "cmd=spawn;ncmds=1;",
                                           "cmd=finalize;"};
  const std::vector<std::string> lines = {"cmd=barrier_in", "cmd=barrier_in",
                                          "cmd=put kvsname=my_job_2 key=k value=v",
                                          "cmd=get kvsname=my_job_2 key=k", "cmd=finalize"};
  for (int run = 0; run < 200; ++run) {
    PmiServer server(Pmi2Part({0, 1, 2, 3}));
    std::map<uint32_t, bool> in_fence;
    uint32_t next = 0;
    bool entered = false;
    for (int step = 0; step < 300; ++step) {
      PmiServer::Actions actions;
      const auto rank = static_cast<uint32_t>(random() % 4);
      if (entered && random() % 3 == 0) {
        v1::FenceRelease release;
        release.set_sequence(next++);
        actions = server.OnFenceRelease(release);
        for (const auto& action : actions) {
          ASSERT_TRUE(in_fence[std::get<PmiServer::Reply>(action).rank]);
        }
        in_fence.clear();
        entered = false;
      } else if (server.SpeaksFrames(rank)) {
        const std::string& body = bodies[random() % bodies.size()];
        actions = server.OnMessage(rank, Framed(body));
        // One that is in the fence already is told so.
        if (body.rfind("cmd=kvs-fence", 0) == 0 && (actions.empty() || actions[0].index() != 0)) {
          in_fence[rank] = true;
        }
      } else if (random() % 2 == 0) {
        const char* version = random() % 2 == 0 ? "1" : "2";
        actions = server.OnMessage(rank, absl::StrCat("cmd=init pmi_version=", version));
        if (server.SpeaksFrames(rank)) (void)server.OnMessage(rank, Framed("cmd=fullinit;"));
      } else {
        const std::string& line = lines[random() % lines.size()];
        actions = server.OnMessage(rank, line);
        if (line == "cmd=barrier_in") in_fence[rank] = true;
      }
      for (const auto& action : actions) {
        ASSERT_FALSE(std::holds_alternative<PmiServer::Drop>(action));
        if (auto* enter = std::get_if<v1::FenceEnter>(&action)) {
          ASSERT_FALSE(entered);
          ASSERT_EQ(enter->sequence(), next);
          entered = true;
        }
        if (auto* reply = std::get_if<PmiServer::Reply>(&action)) {
          ASSERT_EQ(Pmi2FrameSize(reply->message) == reply->message.size(),
                    reply->message.back() == ';');
        }
      }
    }
  }
}

}  // namespace
}  // namespace dtrain::shepherd
