// SPDX-License-Identifier: Apache-2.0
#include <sys/time.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dtrain/dtrain.h"
#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"
#include "tests/component/runtime/cpu_ranks.h"
#include "tests/component/runtime/ranks.h"

namespace dtrain::runtime {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

// Timeouts here are either never reached or what the test is about.
RanksOptions WithTimeouts(const char* init, const char* collective) {
  RanksOptions options;
  options.environment["DTRAIN_TIMEOUT_SECONDS"] = init;
  options.environment["DTRAIN_COLLECTIVE_TIMEOUT_SECONDS"] = collective;
  return options;
}

TEST(FailureTest, RankThatDiesBeforeTheStartUpBarrierEndsTheOthersWaitInTime) {
  const auto ends = Ranks::Run(
      3,
      [](int rank) {
        if (rank == 1) _exit(7);
        EXPECT_EQ(dtrain_init(nullptr), DTRAIN_ERROR_TIMEOUT);
        EXPECT_THAT(dtrain_last_error(),
                    AllOf(HasSubstr("rank " + std::to_string(rank) + " of 3 could not join"),
                          HasSubstr("not every rank"), HasSubstr("DTRAIN_TIMEOUT_SECONDS")));
        EXPECT_EQ(dtrain_barrier(), DTRAIN_ERROR_STATE);
      },
      Ending({{1, 7}}, WithTimeouts("1", "40")));
  EXPECT_EQ(ends, (std::vector<int>{0, 7, 0}));
}

// M7, for the ranks of one node: there is nobody to be named, but the wait ends in time.
TEST(FailureTest, RankThatDiesBetweenTheBarriersOfTheStartEndsTheOthersWaitInTime) {
  RanksOptions options = Ending({{2, 7}}, WithTimeouts("1", "40"));
  // Rank 2 asks for rank 0's second entry, and dies of the answer.
  options.instead = [](int rank, const std::string& line) -> std::optional<std::string> {
    if (rank == 2 && line.ends_with("key=dtrain-0.1-0-0")) return "EOF";
    return std::nullopt;
  };
  const auto ends = Ranks::Run(
      3,
      [](int rank) {
        const dtrain_status status = dtrain_init(nullptr);
        if (rank == 2) {
          EXPECT_EQ(status, DTRAIN_ERROR_LAUNCHER);
          EXPECT_THAT(dtrain_last_error(), HasSubstr("closed it"));
          _exit(7);
        }
        EXPECT_THAT(status, AnyOf(DTRAIN_ERROR_NETWORK, DTRAIN_ERROR_TIMEOUT));
        EXPECT_THAT(dtrain_last_error(), HasSubstr("could not join the job"));
      },
      options);
  EXPECT_EQ(ends, (std::vector<int>{0, 0, 7}));
}

// Runs all-reduces until one fails.
void ReduceUntilFailure(size_t count) {
  std::vector<float> data(count, 1.0f);
  dtrain_status status = DTRAIN_OK;
  while (status == DTRAIN_OK) {
    status = dtrain_allreduce(data.data(), data.data(), count, DTRAIN_FLOAT32, DTRAIN_MAX);
  }
  EXPECT_EQ(status, DTRAIN_ERROR_NETWORK);
  EXPECT_THAT(dtrain_last_error(),
              AllOf(HasSubstr("dtrain_allreduce: rank"), HasSubstr("allreduce max of"),
                    HasSubstr("lost the connection to rank"), Not(HasSubstr(".cc:"))));
  EXPECT_EQ(dtrain_barrier(), DTRAIN_ERROR_NETWORK);
  EXPECT_THAT(dtrain_last_error(), HasSubstr("broken since an earlier failure"));
  EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << "which does not wait then: " << dtrain_last_error();
}

// M2, for the library's part: an error at once, long before the timeout. SIGPIPE keeps its default
// action, which would end the process.
TEST(FailureTest, RankThatIsKilledBetweenCollectivesFailsAllOthersAtOnce) {
  const auto ends = Ranks::Run(
      4,
      [](int rank) {
        signal(SIGPIPE, SIG_DFL);
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
        ASSERT_EQ(dtrain_barrier(), DTRAIN_OK);
        if (rank == 1) raise(SIGKILL);
        ReduceUntilFailure(10);
      },
      Ending({{1, -SIGKILL}}, WithTimeouts("40", "600")));
  EXPECT_EQ(ends, (std::vector<int>{0, -SIGKILL, 0, 0}));
}

// M2
TEST(FailureTest, RankThatIsKilledInTheMiddleOfACollectiveFailsAllOthersAtOnce) {
  constexpr size_t kCount = size_t{4} << 20;
  const auto ends = Ranks::Run(
      4,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
        ASSERT_EQ(dtrain_barrier(), DTRAIN_OK) << "only then all of them have joined";
        if (rank != 2) return ReduceUntilFailure(kCount);
        // Inside one of them, where it spends nearly all of its time.
        itimerval soon{{0, 0}, {0, 20'000}};
        setitimer(ITIMER_REAL, &soon, nullptr);
        std::vector<float> data(kCount);
        while (dtrain_allreduce(data.data(), data.data(), kCount, DTRAIN_FLOAT32, DTRAIN_MAX) ==
               DTRAIN_OK) {
        }
        ADD_FAILURE() << "rank 2 has survived";
      },
      Ending({{2, -SIGALRM}}, WithTimeouts("40", "600")));
  EXPECT_EQ(ends, (std::vector<int>{0, 0, -SIGALRM, 0}));
}

// M1, for the library's part
TEST(FailureTest, StoppedRankEndsTheOthersWaitInTime) {
  const auto ends = Ranks::Run(
      2,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
        if (rank == 1) raise(SIGSTOP);
        EXPECT_EQ(dtrain_barrier(), DTRAIN_ERROR_TIMEOUT);
        EXPECT_THAT(dtrain_last_error(), AllOf(HasSubstr("rank 0 of 2, collective 0 (barrier)"),
                                               HasSubstr("stopped or late"),
                                               HasSubstr("DTRAIN_COLLECTIVE_TIMEOUT_SECONDS")));
      },
      Ending({{1, -SIGKILL}}, WithTimeouts("40", "1")));
  EXPECT_EQ(ends, (std::vector<int>{0, -SIGKILL}));
}

// M5
TEST(FailureTest, RanksThatDisagreeAreNamedAtOnceOnAllRanks) {
  const std::function<dtrain_status(int, int64_t*)> disagreements[] = {
      [](int rank, int64_t* data) {  // count
        return dtrain_allreduce(data, data, rank == 0 ? 64 : 32, DTRAIN_INT64, DTRAIN_SUM);
      },
      [](int rank, int64_t* data) {  // type
        return dtrain_allreduce(data, data, 64, rank == 0 ? DTRAIN_INT64 : DTRAIN_FLOAT64,
                                DTRAIN_SUM);
      },
      [](int rank, int64_t* data) {  // operation
        return dtrain_allreduce(data, data, 64, DTRAIN_INT64, rank == 0 ? DTRAIN_MIN : DTRAIN_MAX);
      },
      [](int rank, int64_t* data) {  // nothing
        return dtrain_allreduce(data, data, rank == 0 ? 0 : 32, DTRAIN_INT64, DTRAIN_SUM);
      },
      [](int rank, int64_t* data) {  // kind
        return rank == 0 ? dtrain_barrier() : dtrain_broadcast(data, 64, DTRAIN_INT64, 0);
      },
      [](int rank, int64_t* data) {  // root
        return dtrain_broadcast(data, 64, DTRAIN_INT64, rank);
      }};
  for (const auto& disagree : disagreements) {
    const auto ends = Ranks::Run(
        2,
        [&](int rank) {
          ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
          std::vector<int64_t> data(64);
          EXPECT_EQ(disagree(rank, data.data()), DTRAIN_ERROR_MISMATCH);
          EXPECT_THAT(dtrain_last_error(),
                      AllOf(HasSubstr("of 2, collective 0"), HasSubstr("rank 0 for "),
                            HasSubstr("rank 1 for ")));
        },
        WithTimeouts("40", "600"));
    EXPECT_EQ(ends, (std::vector<int>{0, 0}));
  }
}

// Which ranks leave while the others are in a collective, and where all of them are.
struct Leaving {
  const char* name;
  int ranks;
  const char* mapping;  // null: one node
  std::vector<int> leavers;
};

class LeavingTest : public testing::TestWithParam<Leaving> {};
INSTANTIATE_TEST_SUITE_P(All, LeavingTest,
                         testing::Values(Leaving{"OneNode", 3, nullptr, {1}},
                                         Leaving{"OneNodeFirst", 2, nullptr, {0}},
                                         Leaving{"NodesOfOne", 3, "(vector,(0,3,1))", {1}},
                                         Leaving{"NodesOfOneFirst", 3, "(vector,(0,3,1))", {0}},
                                         Leaving{"NodesOfTwo", 4, "(vector,(0,2,2))", {3}},
                                         Leaving{"WholeNode", 4, "(vector,(0,2,2))", {2, 3}},
                                         Leaving{"ManyNodes", 10, "(vector,(0,10,1))", {4}}),
                         [](const auto& info) { return info.param.name; });

RanksOptions Placed(const Leaving& leaving) {
  RanksOptions options = WithTimeouts("600", "600");
  options.environment["DTRAIN_ADDRESS"] = "127.0.0.1";
  if (leaving.mapping != nullptr) options.mapping = leaving.mapping;
  return options;
}

// A worker that ends early leaves the job; the others must not wait for it until the timeout.
TEST_P(LeavingTest, WhileOthersAreInACollectiveFailsAllAtOnce) {
  const Leaving& leaving = GetParam();
  std::string leavers;
  for (const int rank : leaving.leavers)
    leavers += (leavers.empty() ? "(" : "|") + std::to_string(rank);
  const std::string expected = "rank " + leavers + ") is leaving the job .* is in allreduce sum of";
  for (const size_t count : {size_t{10}, size_t{1000000}}) {
    SharedTable table(leaving.ranks);
    Ranks::Run(
        leaving.ranks,
        [&](int rank) {
          ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
          std::vector<float> data(count, 1.0f);
          const auto reduce = [&] {
            return dtrain_allreduce(data.data(), data.data(), count, DTRAIN_FLOAT32, DTRAIN_SUM);
          };
          ASSERT_EQ(reduce(), DTRAIN_OK) << dtrain_last_error();
          // Nobody fails before all are through with the first one.
          ASSERT_TRUE(table.Meet(In(std::chrono::seconds(30))));
          const auto& all = leaving.leavers;
          if (std::find(all.begin(), all.end(), rank) != all.end()) {
            EXPECT_EQ(dtrain_finalize(), DTRAIN_ERROR_MISMATCH);
            EXPECT_THAT(dtrain_last_error(), HasSubstr("could not leave the job cleanly"));
          } else {
            EXPECT_EQ(reduce(), DTRAIN_ERROR_MISMATCH);
            EXPECT_THAT(dtrain_last_error(), HasSubstr("collective 1 (allreduce sum of "));
            EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << "which does not wait then";
          }
          EXPECT_THAT(dtrain_last_error(), testing::ContainsRegex(expected));
        },
        Placed(leaving));
  }
}

// The others may be slower in the last collective, which the one that leaves has been in.
TEST_P(LeavingTest, AfterTheLastCollectiveDisturbsNobody) {
  RanksOptions options = Placed(GetParam());
  options.rejoin = true;
  Ranks::Run(
      GetParam().ranks,
      [](int) {
        std::vector<float> data(300000, 1.0f);
        for (int life = 0; life < 4; ++life) {
          ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
          ASSERT_EQ(dtrain_broadcast(data.data(), data.size(), DTRAIN_FLOAT32, life % 2), DTRAIN_OK)
              << dtrain_last_error();
          ASSERT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
        }
      },
      options);
}

// An asynchronous call begins with an agreement, in which the others wait.
TEST(FailureTest, RankThatLeavesIsToldWithTheNameOfTheCallThatNeedsIt) {
  Ranks::Run(
      2,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
        if (rank == 1) {
          EXPECT_EQ(dtrain_finalize(), DTRAIN_ERROR_MISMATCH);
          return;
        }
        float data[4] = {};
        dtrain_options options = DTRAIN_OPTIONS_INIT;
        options.name = "layer.a";
        dtrain_handle handle = 0;
        ASSERT_EQ(
            dtrain_allreduce_async(data, data, 4, DTRAIN_FLOAT32, DTRAIN_SUM, &options, &handle),
            DTRAIN_OK);
        EXPECT_EQ(dtrain_wait(handle), DTRAIN_ERROR_MISMATCH);
        EXPECT_THAT(dtrain_last_error(),
                    AllOf(HasSubstr("(allreduce sum of 4 float32, \"layer.a\")"),
                          HasSubstr("rank 1 is leaving the job (it has called dtrain_finalize"),
                          HasSubstr("while rank 0 is in allreduce sum of 4 float32; did it get "
                                    "less data?"),
                          HasSubstr("join()")));
      },
      WithTimeouts("600", "600"));
}

TEST(FailureTest, RankThatLeavesAtItsExitWaitsLongerThanTheTimeout) {
  Ranks::Run(
      2,
      [](int rank) {
        ASSERT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
        if (rank == 0) poll(nullptr, 0, 2000);  // still works
        EXPECT_EQ(dtrain_finalize_at_exit(), DTRAIN_OK) << dtrain_last_error();
        EXPECT_EQ(dtrain_rank(), -1);
      },
      WithTimeouts("1", "40"));
}

// Canaries: a harness that cannot fail proves nothing.
TEST(HarnessTest, ReportsARankWhoseExpectationFailed) {
  EXPECT_NONFATAL_FAILURE(Ranks::Run(1, [](int) { _exit(Ranks::kExpectationFailed); }),
                          "an expectation failed in it");
}

TEST(HarnessTest, ReportsARankThatDiesOfASignal) {
  const auto die = [](int rank) {
    if (rank == 1) raise(SIGKILL);
  };
  EXPECT_NONFATAL_FAILURE(Ranks::Run(2, die), "rank 1 ended with signal 9");
}

// In a fork, whose own failures are what is looked at.
TEST(HarnessTest, CountsAnExpectationThatFailsBeforeAnExpectedEnd) {
  for (const int end : {7, -SIGKILL}) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    std::fflush(nullptr);
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      dup2(pipe[1], STDOUT_FILENO);
      const auto body = [end](int rank) {
        if (rank == 0) return;
        EXPECT_EQ(1 + 1, 3) << "seen in the rank";
        if (end > 0) _exit(end);
        raise(SIGKILL);
      };
      Ranks::Run(2, body, Ending({{1, end}}));
      std::fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    close(pipe[1]);
    std::string said;
    char buffer[4096];
    for (ssize_t n; (n = read(pipe[0], buffer, sizeof(buffer))) > 0;) {
      said.append(buffer, static_cast<size_t>(n));
    }
    close(pipe[0]);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
    EXPECT_THAT(said, AllOf(HasSubstr("seen in the rank"),
                            HasSubstr("1 expectations failed in rank 1 before it ended with " +
                                      std::to_string(end))));
  }
}

// As a sanitizer does it.
TEST(HarnessTest, ReportsARankThatExitsWithACodeOfItsOwn) {
  EXPECT_NONFATAL_FAILURE(Ranks::Run(1, [](int) { _exit(66); }), "rank 0 ended with exit code 66");
}

TEST(HarnessTest, ReportsARankThatWasToDieAndLives) {
  EXPECT_NONFATAL_FAILURE(Ranks::Run(
                              1, [](int) {}, Ending({{0, -SIGKILL}})),
                          "rank 0 ended with exit code 0");
}

struct BadServer {
  const char* name;
  const char* request;  // begins so
  const char* answer;
  dtrain_status expected;
};

class BadServerTest : public testing::TestWithParam<BadServer> {};
INSTANTIATE_TEST_SUITE_P(
    All, BadServerTest,
    testing::Values(
        BadServer{"Silent", "cmd=init", "", DTRAIN_ERROR_TIMEOUT},
        BadServer{"ClosesAtOnce", "cmd=init", "EOF", DTRAIN_ERROR_LAUNCHER},
        BadServer{"RefusesInit", "cmd=init", "cmd=response_to_init rc=-1", DTRAIN_ERROR_LAUNCHER},
        BadServer{"TalksNonsense", "cmd=init", "HTTP/1.1 400 Bad Request", DTRAIN_ERROR_LAUNCHER},
        BadServer{"OffersTinyLimits", "cmd=get_maxes",
                  "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=8", DTRAIN_ERROR_LAUNCHER},
        BadServer{"OffersHugeLimits", "cmd=get_maxes",
                  "cmd=maxes kvsname_max=999999999999999999999 keylen_max=64 vallen_max=8",
                  DTRAIN_ERROR_LAUNCHER},
        BadServer{"ForgetsTheName", "cmd=get_my_kvsname", "cmd=my_kvsname", DTRAIN_ERROR_LAUNCHER},
        BadServer{"RefusesPut", "cmd=put", "cmd=put_result rc=-1 msg=full", DTRAIN_ERROR_LAUNCHER},
        BadServer{"LosesRecords", "cmd=get kvsname=kvs_test_0 key=dtrain",
                  "cmd=get_result rc=-1 msg=no value=unknown", DTRAIN_ERROR_LAUNCHER},
        BadServer{"GarblesLength", "cmd=get kvsname=kvs_test_0 key=dtrain",
                  "cmd=get_result rc=0 msg=success value=99999999:x", DTRAIN_ERROR_LAUNCHER},
        BadServer{"GarblesRecords", "cmd=get kvsname=kvs_test_0 key=dtrain",
                  "cmd=get_result rc=0 msg=success value=5:1/x/y", DTRAIN_ERROR_LAUNCHER},
        BadServer{"DiesInBarrier", "cmd=barrier_in", "EOF", DTRAIN_ERROR_LAUNCHER}),
    [](const auto& info) { return info.param.name; });

TEST_P(BadServerTest, FailsInitWithAReason) {
  RanksOptions options = WithTimeouts("1", "40");
  options.instead = [](int, const std::string& line) -> std::optional<std::string> {
    if (line.starts_with(GetParam().request)) return GetParam().answer;
    return std::nullopt;
  };
  const auto ends = Ranks::Run(
      2,
      [](int rank) {
        EXPECT_EQ(dtrain_init(nullptr), GetParam().expected);
        EXPECT_THAT(dtrain_last_error(), HasSubstr("dtrain_init: rank " + std::to_string(rank)));
      },
      options);
  EXPECT_EQ(ends, (std::vector<int>{0, 0}));
}

TEST(FailureTest, BadEnvironmentIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"PMI_FD", "x"},
      {"PMI_FD", "987"},
      {"PMI_RANK", "2"},
      {"PMI_SIZE", ""},
      {"DTRAIN_TIMEOUT_SECONDS", "soon"},
      {"DTRAIN_COLLECTIVE_TIMEOUT_SECONDS", "-1"},
      {"DTRAIN_ADDRESS", "node7"},
      {"DTRAIN_ADDRESS", "192.0.2.1"},  // not an address of this host
      {"GLOO_SOCKET_IFNAME", "nosuch0,nosuch1"}};
  for (const auto& [name, value] : cases) {
    const bool foreign = std::string_view(value) == "192.0.2.1";
    RanksOptions options;
    if (foreign) options.mapping = "(vector,(0,2,1))";  // one node would not need the address
    Ranks::Run(
        2,
        [&, name = name, value = value](int) {
          setenv(name, value, 1);
          EXPECT_NE(dtrain_init(nullptr), DTRAIN_OK) << name << "=" << value;
          EXPECT_THAT(dtrain_last_error(), HasSubstr(foreign ? "192.0.2.1" : name));
        },
        options);
  }
}

TEST(FailureTest, NamedInterfaceIsUsed) {
  RanksOptions options;
  options.environment["GLOO_SOCKET_IFNAME"] = "nosuch0,lo";
  const auto ends = Ranks::Run(
      2,
      [](int) {
        EXPECT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
        EXPECT_EQ(dtrain_barrier(), DTRAIN_OK);
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK);
      },
      options);
  EXPECT_EQ(ends, (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace dtrain::runtime
