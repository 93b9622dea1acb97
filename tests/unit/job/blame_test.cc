// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/blame.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>

#include "launcher/job/left_early.h"
#include "tests/unit/job/job_fixture.h"

namespace dtrain::job {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kFirst = 1'700'000'000'000 * kMs;  // when the first exit came

// A rank's end; times in ms after the first exit.
struct Told {
  RankEnd end;
  Told Exit(int code, int64_t at = 0) const {
    Told copy = *this;
    copy.end.ended = true;
    copy.end.exit.set_exit_code(code);
    copy.end.ended_unix_nanos = kFirst + at * kMs;
    return copy;
  }
  Told Killed(int signal, int64_t at = 0) const {
    Told copy = Exit(0, at);
    copy.end.exit.set_signal(signal);
    return copy;
  }
  // By us, after the first exit.
  Told Ended(int signal = SIGTERM, int64_t at = 200) const {
    Told copy = Killed(signal, at);
    copy.end.exit.set_told_to_stop(true);
    return copy;
  }
  Told Shows(Sign sign, int64_t at) const {
    Told copy = *this;
    copy.end.seen.sign = sign;
    copy.end.seen.unix_nanos = kFirst + at * kMs;
    return copy;
  }
  Told LostPeer(int64_t at) const {
    Told copy = *this;
    copy.end.seen.peer_lost_unix_nanos = kFirst + at * kMs;
    return copy;
  }
};

const Told kRank;

TEST(BlameTest, EveryPairOfSigns) {
  const Told victim = kRank.Exit(1).Shows(Sign::kException, -20).LostPeer(-20);
  const Told plain = kRank.Exit(1).Shows(Sign::kException, -20);
  const Told bare = kRank.Exit(1);
  struct Case {
    const char* what;
    Told first, other;
    bool other_is_blamed;
    int code = 1;
  };
  const Case cases[] = {
      {"a victim and a crash that was reaped late", victim, kRank.Ended(SIGABRT, 300), true, 134},
      {"a victim and a segmentation fault", victim, kRank.Killed(SIGSEGV, 50), true, 139},
      {"a victim and a kill for memory, reaped late", victim, kRank.Killed(SIGKILL, 1000), true,
       137},
      {"a victim and a crash in a wrapper", victim, kRank.Ended().Shows(Sign::kCrash, -900), true,
       134},
      {"a victim and a kill in a wrapper", victim, kRank.Ended().Shows(Sign::kKilled, -900), true,
       137},
      {"a victim and an exception in teardown", victim, kRank.Ended().Shows(Sign::kException, -400),
       true},
      {"a victim and an exception that hangs at exit", victim,
       kRank.Ended(SIGKILL, 5000).Shows(Sign::kException, -30000), true},
      {"a victim and one that ended by itself", victim,
       kRank.Exit(9, 80).Shows(Sign::kException, -500), true, 9},
      {"a victim and one that was ended", victim, kRank.Ended(), false},
      {"a victim and one that lives, killed after the grace", victim, kRank.Ended(SIGKILL, 30000),
       false},
      {"a victim and a victim", victim, kRank.Ended().Shows(Sign::kException, -30).LostPeer(-30),
       false},
      {"a victim and a crash that is a victim's", victim, kRank.Ended(SIGABRT).LostPeer(-10),
       false},
      {"a victim and an exception about the end", victim,
       kRank.Ended().Shows(Sign::kException, 150), false},
      {"a victim and an old exception", victim, kRank.Ended().Shows(Sign::kException, -70000),
       false},
      {"an exception and an earlier one", plain, kRank.Ended().Shows(Sign::kException, -400), true},
      {"an exception and an earlier crash", plain, kRank.Ended().Shows(Sign::kCrash, -400), true,
       134},
      {"an exception and a handled one", plain, kRank.Ended().Shows(Sign::kException, -9000),
       false},
      {"an exception and a later one", plain, kRank.Ended().Shows(Sign::kException, -10), false},
      {"an exception and an earlier exit", plain, kRank.Exit(9, -30), true, 9},
      {"an exception and a later exit", plain, kRank.Exit(9, 30), false},
      {"an exception and a later crash", plain, kRank.Ended(SIGSEGV, 30), false},
      {"an exit without a word and a crash", bare, kRank.Ended(SIGABRT, 300), true, 134},
      {"an exit without a word and a late crash", bare, kRank.Ended(SIGABRT, 3000), false},
      {"an exit without a word and an exception", bare, kRank.Ended().Shows(Sign::kException, -400),
       true},
      {"an exit without a word and a victim", bare,
       kRank.Ended().Shows(Sign::kException, -400).LostPeer(-400), false},
      {"a victim of long ago", kRank.Exit(1).Shows(Sign::kException, -20).LostPeer(-90000),
       kRank.Ended(SIGABRT, 300), false},
      {"a crash whose last words are of a peer", kRank.Killed(SIGSEGV).LostPeer(-20),
       kRank.Ended().Shows(Sign::kException, -30000), false},
      {"an end by the kernel", kRank.Killed(SIGKILL), kRank.Ended(SIGABRT, 100), false},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    // Whatever their numbers.
    for (const uint32_t first : {0u, 1u}) {
      std::vector<RankEnd> ranks(2);
      ranks[first] = each.first.end;
      ranks[1 - first] = each.other.end;
      for (uint32_t i = 0; i < 2; ++i) ranks[i].rank = Rank(i);
      const Rank blamed = Blame(ranks, Rank(first), kFirst, kFirst);
      EXPECT_EQ(blamed, Rank(each.other_is_blamed ? 1 - first : first));
      if (each.other_is_blamed) {
        EXPECT_EQ(BlamedExitCode(ranks[blamed.value()]), each.code);
      }
    }
  }
}

TEST(BlameTest, TheEarliestOfMany) {
  std::vector<RankEnd> ranks;
  for (const Told& each : {kRank.Exit(1).LostPeer(-5), kRank.Ended().Shows(Sign::kException, -300),
                           kRank.Ended().Shows(Sign::kException, -500),
                           kRank.Ended().Shows(Sign::kException, -900).LostPeer(-800)}) {
    ranks.push_back(each.end);
    ranks.back().rank = Rank(static_cast<uint32_t>(ranks.size() - 1));
  }
  EXPECT_EQ(Blame(ranks, Rank(0), kFirst, kFirst), Rank(2));
}

// A loaded machine: words come late, and so does the exit that makes us end all.
TEST(BlameTest, WordsCountUntilWeHaveHeardOfTheExit) {
  std::vector<RankEnd> ranks;
  for (const Told& each :
       {kRank.Exit(1).LostPeer(300), kRank.Ended().Shows(Sign::kException, 400)}) {
    ranks.push_back(each.end);
    ranks.back().rank = Rank(static_cast<uint32_t>(ranks.size() - 1));
  }
  EXPECT_EQ(Blame(ranks, Rank(0), kFirst, kFirst + 350 * kMs), Rank(1));
  EXPECT_EQ(Blame(ranks, Rank(0), kFirst, kFirst), Rank(0));
}

class BlamedTest : public JobFixture {};

TEST_F(BlamedTest, TheVerdictIsThatRanks) {
  Make(2);
  RunUntil(State::kRunning);
  const int64_t wall = kEpoch + (now_ - start_).count();
  SignReader::Seen raised;
  raised.sign = Sign::kException;
  raised.unix_nanos = wall;
  Feed(SignSeen{NodeId(1), Rank(2), raised});
  now_ += std::chrono::milliseconds(400);
  Exit(0, 1);
  SignReader::Seen lost;
  lost.peer_lost_unix_nanos = wall + 400 * kMs;
  Feed(SignSeen{NodeId(0), Rank(0), lost});  // its last words come behind its end
  for (uint32_t rank : {1, 2, 3}) Exit(rank, 0, SIGTERM, true);
  EndAll();
  ASSERT_TRUE(finished_);
  EXPECT_EQ(verdict().kind, Verdict::Kind::kWorker);
  EXPECT_EQ(verdict().rank, Rank(2));
  EXPECT_EQ(verdict().exited_first, Rank(0));
  EXPECT_EQ(verdict().exit_code, 1);
  EXPECT_EQ(verdict().nodes, std::vector<NodeId>{NodeId(1)});
}

// Python takes a moment to end. What it said long before is not why.
TEST_F(BlamedTest, TheVerdictHasTheMistake) {
  for (const int seconds : {1, 100}) {
    finished_ = false;
    all_.clear();
    Make(2);
    RunUntil(State::kRunning);
    SignReader::Seen seen;
    seen.mistake = "ModuleNotFoundError";
    seen.mistake_unix_nanos = kEpoch + (now_ - start_).count();
    Feed(SignSeen{NodeId(0), Rank(1), seen});
    now_ += std::chrono::seconds(seconds);
    Exit(1, 1);
    for (uint32_t rank : {0, 2, 3}) Exit(rank, 0, SIGTERM, true);
    EndAll();
    ASSERT_TRUE(finished_);
    EXPECT_EQ(verdict().mistake, seconds == 1 ? "ModuleNotFoundError" : "");
  }
}

TEST(LeftEarlyTest, WhoHadLeft) {
  const auto victim = [](const char* tail) {
    Told told = kRank.Exit(1).Shows(Sign::kException, -20).LostPeer(-20);
    told.end.exit.set_stderr_tail(tail);
    return told;
  };
  const char kDdp[] =
      "    loss.backward()\n  Variable._execution_engine.run_backward(\n"
      "RuntimeError: [pair.cc:598] Connection closed by peer [127.0.0.1]:45264";
  const char kPlain[] =
      "line 1541, in all_gather\n    work.wait()\nConnection closed by peer [::1]:1";
  const char kOurs[] =
      "MismatchError: dtrain_allgather_async: rank 0 of 3, collective 2 (allgather of 4 float32): "
      "rank 2 is leaving the job (it has called dtrain_finalize, or its program has ended)";
  const Told ended = kRank.Ended();
  struct Case {
    const char* what;
    std::vector<Told> ranks;  // the first is blamed
    std::string text;
  };
  const Case cases[] = {
      {"DDP",
       {victim(kDdp), kRank.Exit(0, -100), ended.LostPeer(100), ended.LostPeer(100)},
       "rank 1 had finished (exit 0) while 3 ranks waited for it in all-reduce: did one rank get "
       "less data?"},
      {"several had left, of which one was reaped a moment late",
       {victim(kPlain), kRank.Exit(0, -100), kRank.Exit(0, 200), kRank.Exit(0, 5000)},
       "ranks 1, 2 had finished (exit 0) while 2 ranks waited for them in all-gather: did one rank "
       "get less data?"},
      {"long ago",
       {victim("Connection reset by peer"), kRank.Exit(0, -60020)},
       "rank 1 had finished (exit 0) 60 s before, while 1 rank waited for it: did one rank get "
       "less "
       "data?"},
      {"it was still tidying up",
       {victim(kPlain), ended, ended.LostPeer(50)},
       "rank 1 had closed its connections while 2 ranks waited for it in all-gather: did one rank "
       "get less data?"},
      {"more than one may have been", {victim(kPlain), ended, ended}, ""},
      {"nobody has closed one", {victim("RuntimeError: Socket Timeout"), ended}, ""},
      {"libdtrain names it",
       {victim(kOurs), ended.LostPeer(10), ended.LostPeer(10)},
       "rank 2 was leaving the job while 2 ranks waited for it in all-gather: did one rank get "
       "less "
       "data? Then it must call join() when it has no more"},
      {"nobody had left", {victim(kDdp), ended.LostPeer(10)}, ""},
  };
  for (const Case& each : cases) {
    std::vector<RankEnd> ranks;
    for (const Told& told : each.ranks) {
      ranks.push_back(told.end);
      ranks.back().rank = Rank(static_cast<uint32_t>(ranks.size() - 1));
    }
    EXPECT_EQ(LeftEarly(ranks, Rank(0)), each.text) << each.what;
  }
}

TEST_F(BlamedTest, ASignalThatWasPassedOnIsNamed) {
  for (const bool by_shell : {false, true}) {
    finished_ = false;
    Make(2);
    RunUntil(State::kRunning);
    Feed(UserSignal{SIGUSR1, "bash (pid 17, root)"});
    by_shell ? Exit(0, 128 + SIGUSR1) : Exit(0, 0, SIGUSR1);
    for (uint32_t rank : {1, 2, 3}) Exit(rank, 0, SIGTERM, true);
    EndAll();
    EXPECT_EQ(verdict().rank, Rank(0));
    EXPECT_EQ(verdict().passed_on.signal, SIGUSR1);
    EXPECT_EQ(verdict().passed_on.from, "bash (pid 17, root)");
  }
  finished_ = false;
  Make(2);
  RunUntil(State::kRunning);
  Feed(UserSignal{SIGUSR1});
  Exit(0, 1);
  for (uint32_t rank : {1, 2, 3}) Exit(rank, 0, SIGTERM, true);
  EndAll();
  EXPECT_EQ(verdict().passed_on.signal, 0);
}

TEST_F(BlamedTest, WhoHasStoppedItIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "ended by SIGTERM"},
      {"timeout (pid 5, user alice)", "ended by SIGTERM, sent by timeout (pid 5, user alice)"},
      {"dtrain stop (alice, node0)", "stopped by dtrain stop (alice, node0)"}};
  for (const auto& [from, said] : cases) {
    finished_ = false;
    Make(2);
    RunUntil(State::kRunning);
    Feed(UserSignal{SIGTERM, from});
    for (uint32_t rank : {0, 1, 2, 3}) Exit(rank, 0, SIGTERM, true);
    EndAll();
    EXPECT_EQ(verdict().message, said);
    EXPECT_EQ(verdict().exit_code, 143);
  }
}

}  // namespace
}  // namespace dtrain::job
