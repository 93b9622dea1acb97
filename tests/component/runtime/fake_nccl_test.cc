// SPDX-License-Identifier: Apache-2.0
// The fake NCCL finds out who misuses it, or believes what NCCL does not promise. The versions are
// those of which each is true.
#include <signal.h>

#include <string>
#include <vector>

#include "tests/component/runtime/fake_libraries.h"
#include "tests/support/paths.h"

namespace dtrain::runtime {
namespace {

using fakes::Becomes;
using fakes::Beside;
using fakes::Block;
using fakes::Comm;
using fakes::Rank;
using fakes::RunRanks;
using Ints = std::vector<int32_t>;

constexpr int kInvalidArgumentCode = 4, kInvalidUsageCode = 5, kInProgressCode = 7;

// On a thread that works on the rank's GPU.
Beside OnThread(Rank& self, std::function<int()> call) {
  return Beside([&self, call = std::move(call)] {
    self.Use(self.rank);
    return call();
  });
}

TEST(FakeNccl, ABlockingInitialisationWaitsForTheLastRank) {
  RunRanks(3, "fake_nccl", [](Rank& self) {
    const auto id = self.ShareId();
    Comm comm = nullptr;
    if (self.rank == 2) {
      self.Meet();
      EXPECT_EQ(self.Init(&comm, id), 0);
    } else {
      auto init = OnThread(self, [&] { return self.Init(&comm, id); });
      EXPECT_TRUE(init.Hangs());
#ifndef __SANITIZE_THREAD__  // NCCL writes it without order
      EXPECT_NE(comm, nullptr) << "it is there from the beginning";
#endif
      self.Meet();
      EXPECT_TRUE(init.Ends());
      EXPECT_EQ(init.code(), 0);
    }
    EXPECT_EQ(self.Finalize(comm), 0);
    EXPECT_EQ(self.Destroy(comm), 0);
  });
}

TEST(FakeNccl, AConnectionThatIsRefusedIsGivenUpAndLeavesACommunicator) {
  for (const char* folder : {"fake_nccl_2.23.4", "fake_nccl"}) {
    const auto ends =
        RunRanks(2, folder,
                 [](Rank& self) {
                   const auto id = self.ShareId();
                   Comm comm = nullptr;
                   auto init = OnThread(self, [&] { return self.Init(&comm, id); });
                   if (self.rank == 1) {
                     ASSERT_TRUE(init.Ends());
                     EXPECT_EQ(init.code(), 6);
                     EXPECT_NE(std::strstr(self.LastError(), "Connection refused"), nullptr);
                     EXPECT_NE(comm, nullptr);
                     EXPECT_EQ(self.Abort(comm), 0);
                   } else {
                     EXPECT_TRUE(init.Hangs()) << "nobody tells it";
                   }
                   self.Meet();
                 },
                 {{"FAKE_NCCL_REFUSED", "1"}, {"FAKE_TIME_SCALE", "0.001"}});
  }
}

TEST(FakeNccl, TwoRanksOnOneGpuAreFoundAsEachVersionDoes) {
  struct Row {
    const char* folder;
    std::vector<int> refused;  // the others wait
  };
  // Ranks 1 and 3 share; 0 and 2 have their own.
  const std::vector<Row> rows = {{"fake_nccl_old", {1, 3}},
                                 {"fake_nccl", {1, 3}},
                                 {"fake_nccl_2.30.3", {0}},
                                 {"fake_nccl_2.30.7", {0, 1, 2, 3}}};
  for (const Row& row : rows) {
    RunRanks(4, row.folder, [&](Rank& self) {
      const auto id = self.ShareId();
      Comm comm = nullptr;
      Beside init([&] {
        self.Use(self.rank == 3 ? 1 : self.rank);
        return self.Init(&comm, id);
      });
      const bool refused =
          std::find(row.refused.begin(), row.refused.end(), self.rank) != row.refused.end();
      if (refused) {
        EXPECT_TRUE(init.Ends()) << row.folder;
        EXPECT_EQ(init.code(), kInvalidUsageCode);
      } else {
        EXPECT_TRUE(init.Hangs()) << row.folder;
      }
      self.Meet();
    });
  }
}

TEST(FakeNccl, OneGpuIsSharedWithTheVariableOrAnotherHostId) {
  for (const char* folder : {"fake_nccl", "fake_nccl_2.30.3", "fake_nccl_2.30.7"}) {
    for (const bool variable : {false, true}) {
      RunRanks(2, folder,
               [&](Rank& self) {
                 if (variable) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
                 if (!variable) setenv("NCCL_HOSTID", std::to_string(self.rank).c_str(), 1);
                 const auto id = self.ShareId();
                 Comm comm = nullptr;
                 const bool knows = std::string(folder) != "fake_nccl";
                 EXPECT_EQ(self.Init(&comm, id), !variable || knows ? 0 : kInvalidUsageCode);
               },
               {{"FAKE_CUDA_DEVICES", "1"}});
    }
  }
}

TEST(FakeNccl, TheEnvironmentTurnsBlockingIntoNonBlocking) {
  for (const char* folder : {"fake_nccl_old", "fake_nccl_2.18.6", "fake_nccl"}) {
    RunRanks(2, folder,
             [&](Rank& self) {
               Comm comm = nullptr;
               const bool obeys = std::string(folder) != "fake_nccl_old";
               EXPECT_EQ(self.Init(&comm, self.ShareId()), obeys ? kInProgressCode : 0);
               EXPECT_EQ(self.Settle(comm), 0);
             },
             {{"NCCL_COMM_BLOCKING", "0"}});
  }
}

TEST(FakeNccl, ANonBlockingSplitSucceedsWithNothingAndWritesItsPlaceLater) {
  for (const char* folder : {"fake_nccl_2.18.6", "fake_nccl_2.23.4", "fake_nccl"}) {
    RunRanks(2, folder, [](Rank& self) {
      const Comm comm = self.Make(0);
      Comm part = &self;
      if (self.rank == 1) self.Meet();
      EXPECT_EQ(self.Split(comm, 0, &part), 0);
      if (self.rank == 0) {
#ifndef __SANITIZE_THREAD__  // the place is written without order
        EXPECT_EQ(part, nullptr);
#endif
        EXPECT_EQ(self.State(comm), kInProgressCode) << "of the parent";
        EXPECT_EQ(self.AllReduce(comm, &part, &part, 1, nullptr), kInvalidArgumentCode);
        self.Meet();
      }
      EXPECT_EQ(self.Settle(comm), 0);
      EXPECT_NE(part, nullptr);
    });
  }
}

TEST(FakeNccl, ABlockingSplitsPartIsFinalAlsoWhenItFails) {
  RunRanks(2, "fake_nccl",
           [](Rank& self) {
             const Comm comm = self.Make();
             Comm part = nullptr;
             EXPECT_EQ(self.Split(comm, 0, &part), 2);
             ASSERT_NE(part, nullptr);
             EXPECT_EQ(self.Abort(part), 0);
           },
           {{"FAKE_NCCL_FAIL_SPLITS", "1"}});
}

TEST(FakeNccl, ARankWithoutColourCrashesWhenItsSplitFails) {
  const auto ends = RunRanks(2, "fake_nccl",
                             [](Rank& self) {
                               const Comm comm = self.Make();
                               Comm part = nullptr;
                               self.Split(comm, self.rank == 0 ? 0 : -1, &part);
                               EXPECT_EQ(self.rank, 0);
                             },
                             {{"FAKE_NCCL_FAIL_SPLITS", "1"}}, {{1, -SIGABRT}});
  EXPECT_EQ(ends, (std::vector<int>{0, -SIGABRT}));
}

TEST(FakeNccl, ANonBlockingCallCostsAThreadSince2_23) {
  for (const char* folder : {"fake_nccl_2.21.5", "fake_nccl_2.23.4", "fake_nccl"}) {
    RunRanks(2, folder, [&](Rank& self) {
      const Comm comm = self.Make(0);
      char* const memory = self.Allocate(4);
      const auto stream = self.MakeStream(fakes::kFree);
      const int before = self.Seen("threads");
      for (int i = 0; i < 5; ++i) {
        const int code = self.AllReduce(comm, memory, memory, 1, stream);
        EXPECT_TRUE(code == 0 || code == kInProgressCode) << code;
        EXPECT_EQ(self.Settle(comm), 0);
      }
      EXPECT_EQ(self.Seen("threads") - before, std::string(folder) == "fake_nccl_2.21.5" ? 0 : 5);
      EXPECT_EQ(self.Synchronize(stream), 0);
    });
  }
}

// Begins an initialisation on a thread that then ends; rank 1 comes later.
void LeaveAJobBehind(Rank& self, Comm* comm) {
  const auto id = self.ShareId();
  if (self.rank == 1) {
    self.Meet();
    EXPECT_EQ(self.Init(comm, id, 0), kInProgressCode);
    return;
  }
  std::thread([&] {
    self.Use(self.rank);
    EXPECT_EQ(self.Init(comm, id, 0), kInProgressCode);
  }).join();
  self.Meet();
}

#ifdef __SANITIZE_ADDRESS__
TEST(FakeNccl, AJobWhoseThreadHasLeftIsUsedAfterItWasFreed) {
  constexpr int kReport = 1;
  RunRanks(2, "fake_nccl_2.18.6",
           [](Rank& self) {
             Comm comm = nullptr;
             LeaveAJobBehind(self, &comm);
             EXPECT_EQ(self.Settle(comm), 0);
             if (self.rank == 0) pause();
           },
           {}, {{0, kReport}});
}
#else
TEST(FakeNccl, AThreadThatLeavesBeforeItsJobEndsTakesItAlong) {
  for (const char* folder : {"fake_nccl_2.18.6", "fake_nccl_2.26.2", "fake_nccl"}) {
    RunRanks(2, folder, [&](Rank& self) {
      Comm comm = nullptr;
      LeaveAJobBehind(self, &comm);
      const bool kept = self.rank == 1 || std::string(folder) == "fake_nccl";
      EXPECT_EQ(self.Seen("jobs_lost"), kept ? 0 : 1);
      EXPECT_EQ(self.Settle(comm), 0);
    });
  }
}
#endif

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(FakeNccl, AnAbortUnderAThreadInsideIsSeen) {
  for (const char* folder : {"fake_nccl_old", "fake_nccl_2.21.5", "fake_nccl_2.30.7"}) {
    RunRanks(2, folder, [](Rank& self) {
      const auto id = self.ShareId();
      Comm comm = nullptr;
      if (self.rank == 0) {
        auto init = OnThread(self, [&] { return self.Init(&comm, id); });
        ASSERT_TRUE(init.Hangs());
        EXPECT_EQ(self.Abort(comm), 0);
        EXPECT_EQ(self.Seen("ended_inside"), 1);
        EXPECT_TRUE(init.Ends());
      }
      self.Meet();
    });
  }
}

// N3, as a watchdog would do it.
TEST(FakeNccl, AQuestionBesideTheEndIsSeenAndOneBesideACallIsNot) {
  RunRanks(1, "fake_nccl",
           [](Rank& self) {
             const Comm comm = self.Make();
             char* const memory = self.Allocate(8);
             auto asks = OnThread(self, [&] { return self.State(comm); });
             ASSERT_TRUE(asks.Hangs());
             EXPECT_EQ(self.AllReduce(comm, memory, memory + 4, 1, nullptr), 0);
             EXPECT_EQ(self.Finalize(comm), 0);
             EXPECT_EQ(self.Seen("overlaps") + self.Seen("ended_inside"), 0);
             EXPECT_EQ(self.Destroy(comm), 0);
             EXPECT_EQ(self.Seen("ended_inside"), 1);
             EXPECT_TRUE(asks.Ends());
           },
           {{"FAKE_NCCL_QUESTION_MS", "2000"}});
}
#endif

TEST(FakeNccl, ThreadsThatShareACommunicatorOrAGpuAreSeen) {
#ifdef __SANITIZE_THREAD__
  const std::map<int, int> reported = {{0, 66}};
#else
  const std::map<int, int> reported;
#endif
  const auto share = [](Rank& self) {
    const Comm one = self.Make(), other = self.Make();
    if (self.rank == 0) {
      char* const memory = self.Allocate(4);
      // The first use of a kind waits for the other rank.
      auto first = OnThread(self, [&] { return self.AllReduce(one, memory, memory, 1, nullptr); });
      ASSERT_TRUE(first.Hangs());
      int state = 0;
      EXPECT_EQ(state = self.State(one), 0) << "which may be asked";
      EXPECT_EQ(self.Seen("overlaps") + self.Seen("device_overlaps"), 0);
      auto second =
          OnThread(self, [&] { return self.AllReduce(other, memory, memory, 1, nullptr); });
      ASSERT_TRUE(second.Hangs());
      EXPECT_TRUE(Becomes([&] { return self.Seen("device_overlaps") == 1; }));
      auto third = OnThread(self, [&] { return self.AllReduce(one, memory, memory, 1, nullptr); });
      ASSERT_TRUE(third.Hangs());
      EXPECT_TRUE(Becomes([&] { return self.Seen("overlaps") == 1; }));
    }
    self.Meet();
  };
  RunRanks(2, "fake_nccl", share, {}, reported);
}

TEST(FakeNccl, TheFirstUseOfAKindWaitsForAllRanksWhereConnectionsAreMadeLate) {
  for (const char* folder : {"fake_nccl_2.21.5", "fake_nccl"}) {
    RunRanks(2, folder, [&](Rank& self) {
      const Comm comm = self.Make();
      char* const memory = self.Allocate(4);
      if (self.rank == 1) self.Meet();
      auto call = OnThread(self, [&] { return self.AllReduce(comm, memory, memory, 1, nullptr); });
      if (self.rank == 0) {
        EXPECT_EQ(call.Hangs(), std::string(folder) == "fake_nccl");
        self.Meet();
      }
      EXPECT_TRUE(call.Ends());
      EXPECT_EQ(call.code(), 0);
      self.Meet();
    });
  }
}

// gpu/real_nccl_test.cc compares one with the real library of its version.
TEST(FakeNccl, EachFileHasTheFunctionsAndTextsOfItsVersion) {
  RunRanks(1, "fake_nccl_old", [](Rank& self) {
    int version = 0;
    EXPECT_EQ(self.Nccl<int(int*)>("ncclGetVersion")(&version), 0);
    EXPECT_EQ(version, 21403);
    EXPECT_STREQ(self.Nccl<const char*(int)>("ncclGetErrorString")(5), "invalid usage");
  });
  const std::vector<std::pair<const char*, const char*>> firsts = {
      {"fake_nccl_2.18.6", "ncclCommSplit"},
      {"fake_nccl_2.21.5", "ncclMemAlloc"},
      {"fake_nccl_2.23.4", "ncclCommInitRankScalable"},
      {"fake_nccl_2.26.2", "ncclResetDebugInit"},
      {"fake_nccl", "ncclAlltoAll"},
      {"fake_nccl_2.30.3", "pncclCommGrow"}};
  // In a process of its own, which keeps what was opened.
  RunRanks(1, "fake_nccl_old", [&](Rank&) {
    std::string before = "fake_nccl_old";
    for (const auto& [folder, name] : firsts) {
      for (const bool has : {false, true}) {
        const std::string file = LibraryPath(has ? std::string(folder) : before) + "/libnccl.so.2";
        void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
        ASSERT_NE(library, nullptr) << dlerror();
        EXPECT_EQ(dlsym(library, name) != nullptr, has) << folder << " " << name;
      }
      before = folder;
    }
  });
}

}  // namespace
}  // namespace dtrain::runtime
