// SPDX-License-Identifier: Apache-2.0
// The fake NCCL's collectives: what they do with wrong calls, streams and memory, and how
// communicators end around them.
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/component/runtime/fake_libraries.h"

namespace dtrain::runtime {
namespace {

using fakes::Becomes;
using fakes::Beside;
using fakes::Block;
using fakes::Comm;
using fakes::Rank;
using fakes::RunRanks;
using Ints = std::vector<int32_t>;

Beside OnItsGpu(Rank& self, std::function<int()> call) {
  return Beside([&self, call = std::move(call)] {
    self.Use(self.rank);
    return call();
  });
}

// Connects the kinds that the tests use, so that calls only enqueue from then on.
void WarmUp(Rank& self, Comm comm) {
  char* const memory = self.Allocate(4);
  const auto stream = self.MakeStream(fakes::kFree);
  ASSERT_EQ(self.AllReduce(comm, memory, memory, 1, stream), 0) << self.LastError();
  ASSERT_EQ(self.Broadcast(comm, memory, memory, 1, stream), 0);
  ASSERT_EQ(self.Synchronize(stream), 0);
}

TEST(FakeNcclWork, ACollectiveOnlyEnqueuesBehindItsStreamAndInTheOrderOfTheCalls) {
  RunRanks(2, "fake_nccl", [](Rank& self) {
    const Comm comm = self.Make();
    WarmUp(self, comm);
    const auto one = self.MakeStream(fakes::kFree), other = self.MakeStream(fakes::kFree);
    char* const memory = self.Allocate(8);
    self.Put(memory, Ints{1, 10}, one);
    Block block(self, one);
    ASSERT_EQ(self.AllReduce(comm, memory, memory, 1, one), 0);
    ASSERT_EQ(self.AllReduce(comm, memory + 4, memory + 4, 1, other), 0);
    EXPECT_FALSE(
        Becomes([&] { return self.QueryStream(other) == 0; }, std::chrono::milliseconds(200)));
    block.Open();
    EXPECT_EQ(self.Synchronize(other), 0);
    EXPECT_EQ(self.Take<int32_t>(memory, 2, other), (Ints{2, 20}));
  });
}

TEST(FakeNcclWork, RanksThatDisagreeGetWrongDataOrHang) {
  for (const bool same_size : {true, false}) {
    RunRanks(2, "fake_nccl", [&](Rank& self) {
      const Comm comm = self.Make();
      WarmUp(self, comm);
      char* const memory = self.Allocate(800'000);
      const auto stream = self.MakeStream(fakes::kFree);
      self.Put(memory, Ints{5}, stream);
      if (same_size && self.rank == 1) {
        ASSERT_EQ(self.Broadcast(comm, memory, memory, 1, stream), 0);
      } else {
        // More than one of the fake's pieces.
        const size_t count = same_size ? 1 : self.rank == 0 ? 200'000 : 100;
        ASSERT_EQ(self.AllReduce(comm, memory, memory, count, stream), 0);
      }
      if (same_size) {
        ASSERT_EQ(self.Synchronize(stream), 0);
        EXPECT_NE(self.Take<int32_t>(memory, 1, stream), Ints{10});
      } else if (self.rank == 0) {
        EXPECT_FALSE(
            Becomes([&] { return self.QueryStream(stream) == 0; }, std::chrono::milliseconds(300)));
      }
      self.Meet();
    });
  }
}

// R1
TEST(FakeNcclWork, AGroupsMembersMeetBySizeAndNotByTheirOrder) {
  RunRanks(2, "fake_nccl", [](Rank& self) {
    const Comm comm = self.Make();
    WarmUp(self, comm);
    char* const memory = self.Allocate(64);
    const auto stream = self.MakeStream(fakes::kFree);
    const auto run = [&](const Ints& counts) {
      self.Put(memory, Ints{1, 2, 3, 4}, stream);
      EXPECT_EQ(self.Start(), 0);
      size_t at = 0;
      for (const int32_t count : counts) {
        EXPECT_EQ(
            self.AllReduce(comm, memory + at, memory + at, static_cast<size_t>(count), stream), 0);
        at += static_cast<size_t>(count) * 4;
      }
      EXPECT_EQ(self.End(), 0);
      EXPECT_EQ(self.Synchronize(stream), 0);
      return self.Take<int32_t>(memory, 4, stream);
    };
    EXPECT_EQ(run({1, 3}), (Ints{2, 4, 6, 8}));
    EXPECT_EQ(run(self.rank == 0 ? Ints{1, 3} : Ints{3, 1}),
              (self.rank == 0 ? Ints{5, 3, 5, 7} : Ints{3, 5, 7, 5}));
  });
}

TEST(FakeNcclWork, AGroupJoinsItsStreams) {
  RunRanks(2, "fake_nccl", [](Rank& self) {
    const Comm comm = self.Make();
    WarmUp(self, comm);
    char* const memory = self.Allocate(8);
    const auto one = self.MakeStream(fakes::kFree), other = self.MakeStream(fakes::kFree);
    Block block(self, other);
    ASSERT_EQ(self.Start(), 0);
    ASSERT_EQ(self.AllReduce(comm, memory, memory, 1, one), 0);
    ASSERT_EQ(self.AllReduce(comm, memory + 4, memory + 4, 1, other), 0);
    ASSERT_EQ(self.End(), 0);
    EXPECT_FALSE(
        Becomes([&] { return self.QueryStream(one) == 0; }, std::chrono::milliseconds(200)));
    block.Open();
    EXPECT_EQ(self.Synchronize(one), 0);
  });
}

TEST(FakeNcclWork, AnErrorInAGroupDropsTheLotAndAMixtureIsOne) {
  RunRanks(2, "fake_nccl", [](Rank& self) {
    const Comm blocking = self.Make(), other = self.Make(0);
    WarmUp(self, blocking);
    char* const memory = self.Allocate(4);
    const auto stream = self.MakeStream(fakes::kFree);
    self.Put(memory, Ints{7}, stream);
    ASSERT_EQ(self.Start(), 0);
    ASSERT_EQ(self.AllReduce(blocking, memory, memory, 1, stream), 0);
    EXPECT_EQ(self.AllReduce(blocking, nullptr, memory, 1, stream), 4);
    EXPECT_EQ(self.End(), 4);
    EXPECT_EQ(self.Synchronize(stream), 0);
    EXPECT_EQ(self.Take<int32_t>(memory, 1, stream), Ints{7});
    ASSERT_EQ(self.Start(), 0);
    EXPECT_EQ(self.AllReduce(blocking, memory, memory, 1, stream), 0);
    EXPECT_EQ(self.AllReduce(other, memory, memory, 1, stream), 4);
    EXPECT_EQ(self.End(), 4);
    EXPECT_EQ(self.End(), 5) << "no group is open";
  });
}

TEST(FakeNcclWork, BuffersThatAreNotTheGpusLoseTheContextAndSpoilTheCanary) {
  for (const char* whose : {"host", "other", "freed", "crooked"}) {
    RunRanks(2, "fake_nccl", [&](Rank& self) {
      const Comm comm = self.Make();
      WarmUp(self, comm);
      const auto stream = self.MakeStream(fakes::kFree);
      const std::string place = whose;
      static Ints host(1);
      char* memory = self.Allocate(8);
      if (self.rank == 0) {
        if (place == "host") memory = reinterpret_cast<char*>(host.data());
        if (place == "crooked") ++memory;
        if (place == "freed") {
          ASSERT_EQ(self.Free(memory), 0);
        }
        if (place == "other") {
          self.Use(5);
          memory = self.Allocate(4);
          self.Use(0);
        }
      }
      ASSERT_EQ(self.AllReduce(comm, memory, memory, 1, stream), 0) << "nothing is checked";
      if (self.rank == 0) {
        EXPECT_EQ(self.Synchronize(stream), 700) << place;
        EXPECT_EQ(self.faults(), 1);
        EXPECT_EQ(self.Get<unsigned char>("fake_cuda_canary")[0], 0xdb);
      } else {
        EXPECT_FALSE(
            Becomes([&] { return self.QueryStream(stream) == 0; }, std::chrono::milliseconds(200)))
            << "the other rank's kernel waits for ever";
      }
      self.Meet();
    });
  }
}

// N16
TEST(FakeNcclWork, BuffersThatOnlySomeRanksRegisteredHangTheCall) {
  for (const bool all : {true, false}) {
    RunRanks(2, "fake_nccl", [&](Rank& self) {
      const Comm comm = self.Make();
      WarmUp(self, comm);
      void *memory = nullptr, *handle = nullptr;
      ASSERT_EQ((self.Nccl<int(void**, size_t)>("ncclMemAlloc")(&memory, 400)), 0);
      const auto enter = self.Nccl<int(Comm, void*, size_t, void**)>("ncclCommRegister");
      EXPECT_EQ(enter(comm, self.Allocate(400), 400, &handle), 0);
      EXPECT_EQ(handle, nullptr) << "it may say that it succeeded and leave it";
      if (all || self.rank == 0) {
        ASSERT_EQ(enter(comm, memory, 400, &handle), 0);
      }
      auto call =
          OnItsGpu(self, [&] { return self.AllReduce(comm, memory, memory, 100, nullptr); });
      EXPECT_EQ(call.Hangs(), !all && self.rank == 0);
      self.Meet();
    });
  }
}

TEST(FakeNcclWork, MoreThanFitsBlocksTheCallWhateverTheAbortFlagSays) {
  RunRanks(2, "fake_nccl",
           [](Rank& self) {
             const Comm comm = self.Make();
             WarmUp(self, comm);
             char* const memory = self.Allocate(4);
             const auto stream = self.MakeStream(fakes::kFree);
             Block block(self, stream);
             auto calls = OnItsGpu(self, [&] {
               for (int i = 0; i < 4; ++i) self.AllReduce(comm, memory, memory, 1, stream);
               return 0;
             });
             EXPECT_TRUE(calls.Hangs());
             EXPECT_EQ(self.Seen("in_flight"), 3);
             auto abort = OnItsGpu(self, [&] { return self.Abort(comm); });
             EXPECT_TRUE(calls.Hangs());
             EXPECT_EQ(self.Seen("ended_inside"), 1);
           },
           {{"FAKE_NCCL_DEPTH", "3"}});
}

TEST(FakeNcclWork, AnAbortWaitsForOtherCommunicatorsKernelsUnlessAllAreToldTogether) {
  for (const bool grouped : {false, true}) {
    RunRanks(2, "fake_nccl", [&](Rank& self) {
      const Comm one = self.Make(), other = self.Make();
      WarmUp(self, one);
      WarmUp(self, other);
      char* const memory = self.Allocate(4);
      if (self.rank == 0) {
        const auto stream = self.MakeStream(fakes::kFree);
        ASSERT_EQ(self.AllReduce(other, memory, memory, 1, stream), 0);
      }
      auto aborts = OnItsGpu(self, [&] {
        if (grouped) self.Start();
        int code = self.Abort(one);
        if (grouped) code = code + self.Abort(other) + self.End();
        return code;
      });
      EXPECT_EQ(aborts.Hangs(), !grouped);
      if (grouped) {
        EXPECT_EQ(aborts.code(), 0);
      }
      self.Meet();
    });
  }
}

TEST(FakeNcclWork, InsideAnOpenGroupAnAbortOnlyQueues) {
  for (const char* folder : {"fake_nccl_2.21.5", "fake_nccl_2.23.4"}) {
    RunRanks(1, folder, [&](Rank& self) {
      const Comm comm = self.Make();
      ASSERT_EQ(self.Start(), 0);
      EXPECT_EQ(self.Abort(comm), 0);
      if (std::string(folder) == "fake_nccl_2.23.4") {
        EXPECT_EQ(self.State(comm), 0) << "it is still there";
      } else {
#ifndef __SANITIZE_ADDRESS__
        int state = 0;
        EXPECT_NE((self.Nccl<int(Comm, int*)>("ncclCommGetAsyncError")(comm, &state)), 0);
        EXPECT_EQ(self.Seen("after_end"), 1);
#endif
      }
      EXPECT_EQ(self.End(), 0);
    });
  }
}

TEST(FakeNcclWork, DestroyAndAbortEndWhenTheOthersOfTheNodeHaveClosedOrDied) {
  for (const bool dies : {false, true}) {
    for (const bool aborts : {false, true}) {
      RunRanks(
          2, "fake_nccl",
          [&](Rank& self) {
            const Comm comm = self.Make();
            if (self.rank == 1) {
              self.Meet();
              if (dies) _exit(7);
              EXPECT_EQ(self.Destroy(comm), 0);
              return;
            }
            auto end =
                OnItsGpu(self, [&] { return aborts ? self.Abort(comm) : self.Destroy(comm); });
            EXPECT_TRUE(end.Hangs());
            self.Meet();
            EXPECT_TRUE(end.Ends());
          },
          {}, dies ? std::map<int, int>{{1, 7}} : std::map<int, int>{});
    }
  }
}

// N22
TEST(FakeNcclWork, AFailedDestroyLeavesTheThreadsGroupOpenSince2_24) {
  for (const char* folder : {"fake_nccl_2.23.4", "fake_nccl_2.26.2"}) {
    RunRanks(2, folder, [&](Rank& self) {
      const Comm comm = self.Make(0), healthy = self.Make();
      WarmUp(self, healthy);
      if (self.rank == 0) {
        Comm part = nullptr;
        ASSERT_EQ(self.Split(comm, 0, &part), 0);
        EXPECT_NE(self.Destroy(comm), 0) << "it is in progress";
        char* const memory = self.Allocate(4);
        const auto stream = self.MakeStream(fakes::kFree);
        EXPECT_EQ(self.AllReduce(healthy, memory, memory, 1, stream), 0);
        if (std::string(folder) == "fake_nccl_2.26.2") {
          EXPECT_EQ(self.QueryStream(stream), 0) << "it was queued, not enqueued";
        } else {
          EXPECT_EQ(self.QueryStream(stream), 600);
        }
      }
      self.Meet();
    });
  }
}

TEST(FakeNcclWork, FinalisingTwiceIsRefusedAndACallAfterwards) {
  RunRanks(2, "fake_nccl", [](Rank& self) {
    const Comm comm = self.Make();
    EXPECT_EQ(self.Finalize(comm), 0);
    EXPECT_EQ(self.Finalize(comm), 4);
    char* const memory = self.Allocate(4);
    EXPECT_EQ(self.AllReduce(comm, memory, memory, 1, nullptr), 5);
    EXPECT_EQ(self.Destroy(comm), 0);
  });
}

// N17
TEST(FakeNcclWork, AGraphKeepsItsCommunicatorBusy) {
  for (const char* end : {"ncclCommFinalize", "ncclCommDestroy", "ncclCommAbort"}) {
    RunRanks(2, "fake_nccl", [&](Rank& self) {
      const Comm comm = self.Make();
      WarmUp(self, comm);
      char* const memory = self.Allocate(4);
      const auto stream = self.MakeStream(fakes::kFree);
      self.Put(memory, Ints{1}, stream);
      ASSERT_EQ((self.Get<int(void*, int)>("cuStreamBeginCapture_v2")(stream, 2)), 0);
      ASSERT_EQ(self.AllReduce(comm, memory, memory, 1, stream), 0);
      void *graph = nullptr, *executable = nullptr;
      ASSERT_EQ((self.Get<int(void*, void**)>("cuStreamEndCapture")(stream, &graph)), 0);
      ASSERT_EQ((self.Get<int(void**, void*, unsigned long long)>("cuGraphInstantiateWithFlags")(
                    &executable, graph, 0)),
                0);
      ASSERT_EQ(self.Get<int(void*)>("cuGraphDestroy")(graph), 0);
      for (int i = 0; i < 3; ++i) {
        ASSERT_EQ((self.Get<int(void*, void*)>("cuGraphLaunch")(executable, stream)), 0);
      }
      EXPECT_EQ(self.Take<int32_t>(memory, 1, stream), Ints{8});
      self.Meet();
      auto ends = OnItsGpu(self, [&] { return self.Nccl<int(Comm)>(end)(comm); });
      EXPECT_TRUE(ends.Hangs()) << end;
      ASSERT_EQ(self.Get<int(void*)>("cuGraphExecDestroy")(executable), 0);
      EXPECT_TRUE(ends.Ends()) << end;
      self.Meet();
    });
  }
}

// N20
TEST(FakeNcclWork, ADeadPeerIsNoticedByTheProxyAndTheErrorReportedExceptIn2_18) {
  for (const char* folder : {"fake_nccl_old", "fake_nccl_2.18.6", "fake_nccl"}) {
    int under_way[2];  // tells rank 1 that rank 0 waits for it
    ASSERT_EQ(pipe(under_way), 0);
    RunRanks(2, folder,
             [&](Rank& self) {
               const Comm comm = self.Make();
               WarmUp(self, comm);
               char byte = 0;
               if (self.rank == 1) _exit(read(under_way[0], &byte, 1) == 1 ? 7 : 8);
               char* const memory = self.Allocate(4);
               const auto stream = self.MakeStream(fakes::kFree);
               ASSERT_EQ(self.AllReduce(comm, memory, memory, 1, stream), 0);
               ASSERT_EQ(write(under_way[1], &byte, 1), 1);
               const bool silent = std::string(folder) == "fake_nccl_2.18.6";
               EXPECT_EQ(Becomes([&] { return self.State(comm) == 6; },
                                 std::chrono::milliseconds(silent ? 300 : 20'000)),
                         !silent);
               EXPECT_EQ(self.QueryStream(stream), 600) << "the kernel waits for ever all the same";
               if (!silent) {
                 EXPECT_EQ(self.AllReduce(comm, memory, memory, 1, stream), 6);
               }
             },
             {{"FAKE_NCCL_PROXY_NOTICES", "1"}}, {{1, 7}});
    close(under_way[0]);
    close(under_way[1]);
  }
}

TEST(FakeNcclWork, AnAllToAllInPlaceIsWrong) {
  RunRanks(2, "fake_nccl", [](Rank& self) {
    const Comm comm = self.Make();
    char* const memory = self.Allocate(16);
    const auto stream = self.MakeStream(fakes::kFree);
    self.Put(memory, Ints{self.rank, self.rank + 10, 0, 0}, stream);
    const auto all =
        self.Nccl<int(const void*, void*, size_t, int, Comm, fakes::Stream)>("ncclAlltoAll");
    ASSERT_EQ(all(memory, memory + 8, 1, 2, comm, stream), 0);
    EXPECT_EQ(self.Take<int32_t>(memory + 8, 2, stream),
              (Ints{10 * self.rank, 10 * self.rank + 1}));
    ASSERT_EQ(all(memory, memory, 1, 2, comm, stream), 0);
    EXPECT_NE(self.Take<int32_t>(memory, 2, stream), (Ints{10 * self.rank, 10 * self.rank + 1}));
  });
}

}  // namespace
}  // namespace dtrain::runtime
