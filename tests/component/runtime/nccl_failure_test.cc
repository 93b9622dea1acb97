// SPDX-License-Identifier: Apache-2.0
// What the NCCL backend does when things break, through the fake libraries.
#include <signal.h>
#include <sys/wait.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/component/runtime/nccl_ranks.h"

namespace dtrain::runtime {
namespace {

using Kind = Collective::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

std::map<std::string, std::string> With(const std::string& name, const std::string& value,
                                        const std::string& variant = "fake_nccl") {
  auto environment = FakeEnvironment(variant);
  environment[name] = value;
  return environment;
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

MaybeError Sum(GpuGroup& communicator, int& value, milliseconds timeout = seconds(30)) {
  Collective what;
  what.kind = Kind::kAllreduce;
  what.input = what.output = &value;
  what.count = 1;
  Spent spent;
  return communicator.Run(what, timeout, spent);
}

// Sums until something breaks, and what that was. Never more than `most` times.
MaybeError SumUntilBroken(GpuGroup& communicator, int most = 1000) {
  for (int i = 0; i < most; ++i) {
    int value = 1;
    if (MaybeError error = Sum(communicator, value)) return error;
  }
  return std::nullopt;
}

// An all-reduce on the GPU which the ranks have not agreed on.
Result<DeviceCommunicator::Ticket> LaunchSum(GpuGroup& communicator, void* memory,
                                             milliseconds timeout) {
  DeviceCommunicator::Work work;
  work.all.resize(1);
  work.all[0].kind = Kind::kAllreduce;
  work.all[0].number = 7;
  work.all[0].input = work.all[0].output = memory;
  work.all[0].count = 8;
  return communicator.device().Launch(std::move(work), timeout, nullptr);
}

#define ASSERT_MADE(made) ASSERT_TRUE((made).ok()) << (made).error().message

// M3
TEST(NcclFailure, AnAsynchronousErrorAbortsAndAllRanksLearnWhoAndWhy) {
  RunNccl(3, With("FAKE_NCCL_ASYNC_ERROR", "1:3:2"), [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_MADE(made);
    const MaybeError error = SumUntilBroken(**made);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code, DTRAIN_ERROR_DEVICE) << error->message;
    EXPECT_TRUE(Contains(error->message, "unhandled system error")) << error->message;
    if (self.rank != 1) {
      EXPECT_TRUE(Contains(error->message, "rank 1: ")) << error->message;
    }
    int value = 1;
    const MaybeError again = Sum(**made, value);
    ASSERT_TRUE(again);
    EXPECT_EQ(again->message, error->message);
  });
}

// M3, of an operation that nobody waits for.
TEST(NcclFailure, AnErrorAfterTheCallReturnedShowsInALaterOne) {
  // The third operation: the second ends only when the other rank has left Make, too.
  RunNccl(2, With("FAKE_NCCL_ASYNC_ERROR", "0:2:6"), [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_MADE(made);
    auto memory = (*made)->Allocate(4096);
    ASSERT_TRUE(memory.ok());
    Collective what;
    what.kind = Kind::kAllreduce;
    what.input = what.output = *memory;
    what.count = 8;
    Spent spent;
    MaybeError error;
    const auto end = NcclRank::In(20);
    while (!error && steady_clock::now() < end) {
      error = (*made)->Run(what, seconds(30), spent);
      std::this_thread::yield();
    }
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code, DTRAIN_ERROR_NETWORK) << error->message;
  });
}

// M4
TEST(NcclFailure, AnAbortThatHangsEndsTheProcessWithTheReason) {
  EXPECT_EQ(NcclOptions().longest_end, seconds(10));
  testing::internal::CaptureStderr();
  auto environment = With("FAKE_NCCL_ASYNC_ERROR", "1:2:2");
  environment["FAKE_NCCL_HANG_ABORT"] = "1";
  const auto ends = RunNccl(2, environment,
                            [](NcclRank& self) {
                              // The other one's abort waits until this one is gone.
                              auto made = self.Make(milliseconds(self.rank == 1 ? 500 : 10'000));
                              ASSERT_MADE(made);
                              const MaybeError error = SumUntilBroken(**made);
                              EXPECT_EQ(self.rank, 0)
                                  << "a rank whose abort hangs must not get here";
                              EXPECT_TRUE(error);
                            },
                            {{1, 205}});
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(ends, (std::vector<int>{0, 205}));
  EXPECT_TRUE(Contains(text, "ncclCommAbort did not end within 0.5 s")) << text;
  EXPECT_TRUE(Contains(text, "unhandled system error")) << text;
}

// M1, of an operation that nobody waits for.
TEST(NcclFailure, ARankThatIsMissingRunsIntoTheTimeoutOfAnEnqueuedOperation) {
  RunNccl(2, FakeEnvironment(), [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_MADE(made);
    int value = 1;
    ASSERT_FALSE(Sum(**made, value));
    if (self.rank == 1) {
      // It learns from the other one, although it asks for nothing.
      MaybeError error;
      const auto end = NcclRank::In(20);
      while (!error && steady_clock::now() < end) {
        error = (*made)->Finish();
        std::this_thread::yield();
      }
      ASSERT_TRUE(error);
      EXPECT_TRUE(Contains(error->message, "rank 0: ")) << error->message;
      EXPECT_TRUE(Contains(error->message, "allreduce sum of 8 int32")) << error->message;
      return;
    }
    auto memory = (*made)->Allocate(4096);
    ASSERT_TRUE(memory.ok());
    ASSERT_TRUE(LaunchSum(**made, *memory, milliseconds(300)).ok());
    const MaybeError error = (*made)->Finish();
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code, DTRAIN_ERROR_TIMEOUT);
    EXPECT_TRUE(Contains(error->message, "collective 7 (allreduce sum of 8 int32)"))
        << error->message;
  });
}

// M2
TEST(NcclFailure, ARankThatDiesBreaksTheOthersAtOnce) {
  const auto ends = RunNccl(4, FakeEnvironment(),
                            [](NcclRank& self) {
                              auto made = self.Make();
                              ASSERT_MADE(made);
                              int value = 1;
                              ASSERT_FALSE(Sum(**made, value));
                              // Nobody dies before all are through with the first one.
                              ASSERT_TRUE(self.bootstrap.Exchange("", NcclRank::In(20)).ok());
                              if (self.rank == 2) _exit(7);
                              const MaybeError error = SumUntilBroken(**made);
                              ASSERT_TRUE(error);
                              EXPECT_EQ(error->code, DTRAIN_ERROR_NETWORK);
                              EXPECT_TRUE(Contains(error->message, "lost the connection to rank 2"))
                                  << error->message;
                            },
                            {{2, 7}});
  EXPECT_EQ(ends, (std::vector<int>{0, 0, 7, 0}));
}

// M2, N20: NCCL says nothing of it, and the others' kernels wait.
TEST(NcclFailure, ARankThatDiesIsMissedWhileTheOthersAreOnTheGpu) {
  const auto ends = RunNccl(
      3, FakeEnvironment(),
      [](NcclRank& self) {
        auto made = self.Make();
        ASSERT_MADE(made);
        auto memory = (*made)->Allocate(4096);
        ASSERT_TRUE(memory.ok());
        ASSERT_TRUE(self.bootstrap.Exchange("", NcclRank::In(20)).ok());
        if (self.rank == 2) _exit(7);
        const auto launched = LaunchSum(**made, *memory, seconds(60));
        const MaybeError error = launched.ok() ? (*made)->Finish() : launched.error();
        ASSERT_TRUE(error);
        EXPECT_EQ(error->code, DTRAIN_ERROR_NETWORK);
        EXPECT_TRUE(Contains(error->message, "lost the connection to rank 2")) << error->message;
      },
      {{2, 7}});
  EXPECT_EQ(ends, (std::vector<int>{0, 0, 7}));
}

TEST(NcclFailure, AbortFromAnotherThreadEndsACollectiveOnAllRanks) {
  RunNccl(3, FakeEnvironment(), [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_MADE(made);
    int value = 1;
    ASSERT_FALSE(Sum(**made, value));
    // Nobody aborts before all are through with the first one.
    ASSERT_TRUE(self.bootstrap.Exchange("", NcclRank::In(20)).ok());
    MaybeError error;
    if (self.rank == 0) {
      // It does not come; the others are inside.
      const auto end = NcclRank::In(20);
      while (!error && steady_clock::now() < end) {
        error = (*made)->Finish();
        std::this_thread::yield();
      }
    } else {
      std::thread other([&] {
        if (self.rank == 1) (*made)->Abort("the user has had enough");
      });
      error = Sum(**made, value);
      other.join();
    }
    ASSERT_TRUE(error);
    EXPECT_TRUE(Contains(error->message, "the user has had enough")) << error->message;
  });
}

// M6
TEST(NcclFailure, OneGpuForTwoRanksIsRefusedBeforeNcclIsAsked) {
  RunNccl(3, With("DTRAIN_DEVICE", "2"), [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, DTRAIN_ERROR_DEVICE);
    for (const char* part :
         {"rank 0 and rank 1", "0000:12:00.0", "GPU-13131313-", "of host ", "DTRAIN_SHARE_GPU=1"}) {
      EXPECT_TRUE(Contains(made.error().message, part)) << made.error().message;
    }
  });
}

TEST(NcclFailure, OneGpuIsSharedWhenThatWasAskedFor) {
  auto environment = With("DTRAIN_SHARE_GPU", "1");
  environment["FAKE_CUDA_DEVICES"] = "1";
  RunNccl(3, environment, [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_MADE(made);
    int value = self.rank;
    const MaybeError error = Sum(**made, value);
    ASSERT_FALSE(error) << error->message;
    EXPECT_EQ(value, 3);
    // Each counts as a machine of its own, for which no other's end waits. Nobody leaves before all
    // are through.
    ASSERT_TRUE(self.bootstrap.Exchange("", NcclRank::In(20)).ok());
  });
}

// M2: a call that is stuck inside NCCL can only be left, and the process must not end in order.
TEST(NcclFailure, ARankThatDiesIsMissedWhileTheOthersAreInsideNccl) {
  testing::internal::CaptureStderr();
  const auto ends =
      RunNccl(3, FakeEnvironment(),
              [](NcclRank& self) {
                auto made = self.Make();
                ASSERT_MADE(made);
                auto memory = (*made)->Allocate(4096);
                ASSERT_TRUE(memory.ok());
                ASSERT_TRUE(self.bootstrap.Exchange("", NcclRank::In(20)).ok());
                if (self.rank == 2) _exit(7);
                const auto launched = LaunchSum(**made, *memory, seconds(60));
                ASSERT_FALSE(launched.ok());
                EXPECT_EQ(launched.error().code, DTRAIN_ERROR_NETWORK);
                EXPECT_TRUE(Contains(launched.error().message, "lost the connection to rank 2"))
                    << launched.error().message;
                std::exit(0);
              },
              {{0, 205}, {1, 205}, {2, 7}});
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(ends, (std::vector<int>{205, 205, 7}));
  EXPECT_TRUE(Contains(text, "a call of NCCL has not come back")) << text;
}

// T18: NCCL's abort waits for the other ranks of the machine, and one that stands still does not
// come.
TEST(NcclFailure, ARankThatStandsStillEndsTheOthersWithTheReason) {
  testing::internal::CaptureStderr();
  const auto ends = RunNccl(2, FakeEnvironment(),
                            [&](NcclRank& self) {
                              auto made = self.Make(milliseconds(500));
                              ASSERT_MADE(made);
                              auto memory = (*made)->Allocate(4096);
                              ASSERT_TRUE(memory.ok());
                              ASSERT_TRUE(LaunchSum(**made, *memory, seconds(60)).ok());
                              ASSERT_FALSE((*made)->Finish());
                              ASSERT_TRUE(self.bootstrap.Exchange("", NcclRank::In(20)).ok());
                              if (self.rank == 1) {
                                raise(SIGSTOP);  // until Ranks kills it
                                return;
                              }
                              ASSERT_TRUE(LaunchSum(**made, *memory, milliseconds(300)).ok());
                              EXPECT_FALSE((*made)->Finish()) << "it must not get here";
                            },
                            {{0, 205}, {1, -SIGKILL}});
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(ends, (std::vector<int>{205, -SIGKILL}));
  EXPECT_TRUE(Contains(text, "ncclCommAbort did not end within 0.5 s")) << text;
  EXPECT_TRUE(Contains(text, "(allreduce sum of 8 int32) was not done in time")) << text;
}

// M7
TEST(NcclFailure, AnInitialisationThatNeverEndsIsGivenUpWithTheNamesOfBothSides) {
  auto environment = With("FAKE_NCCL_HANG_INIT", "1");
  environment["DTRAIN_NCCL_INIT_SECONDS"] = "0.5";
  RunNccl(2, environment, [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, DTRAIN_ERROR_TIMEOUT);
    for (const char* part : {"within 0.5 s", "still waits", "they meet at rank 0 (host ",
                             "127.0.0.1:", "NCCL_SOCKET_IFNAME"}) {
      EXPECT_TRUE(Contains(made.error().message, part)) << made.error().message;
    }
  });
}

// Its thread is still inside NCCL, whose destructors would run under it.
TEST(NcclFailure, AProcessWhoseInitialisationIsStuckDoesNotExitInOrder) {
  auto environment = With("FAKE_NCCL_HANG_INIT", "1");
  environment["DTRAIN_NCCL_INIT_SECONDS"] = "0.5";
  testing::internal::CaptureStderr();
  const auto ends = RunNccl(2, environment,
                            [](NcclRank& self) {
                              {
                                auto made = self.Make();
                                EXPECT_FALSE(made.ok());
                              }
                              std::exit(3);
                            },
                            {{0, 205}, {1, 205}});
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(ends, (std::vector<int>{205, 205}));
  EXPECT_TRUE(Contains(text, "a call of NCCL has not come back")) << text;
}

// M11
TEST(NcclFailure, ADestroyThatHangsDoesNotKeepTheProcessFromLeaving) {
  testing::internal::CaptureStderr();
  const auto ends = RunNccl(2, With("FAKE_NCCL_HANG_DESTROY", "0"), [](NcclRank& self) {
    auto made = self.Make(milliseconds(500));
    ASSERT_MADE(made);
    int value = 1;
    ASSERT_FALSE(Sum(**made, value));
  });
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(ends, (std::vector<int>{0, 0}));
  EXPECT_TRUE(Contains(text, "ncclCommDestroy did not end within 0.5 s")) << text;
}

// M11
TEST(NcclFailure, AFinaliseThatHangsIsAborted) {
  const auto ends = RunNccl(2, With("FAKE_NCCL_HANG_FINALIZE", "1"), [](NcclRank& self) {
    auto made = self.Make(milliseconds(500));
    ASSERT_MADE(made);
  });
  EXPECT_EQ(ends, (std::vector<int>{0, 0}));
}

TEST(NcclFailure, AForkedChildLeavesTheParentsCommunicatorAlone) {
  RunNccl(2, FakeEnvironment(), [](NcclRank& self) {
    auto made = self.Make();
    ASSERT_MADE(made);
    int value = 1;
    ASSERT_FALSE(Sum(**made, value));
    const pid_t child = fork();
    if (child == 0) {
      made->reset();
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    // Often: who has left is seen only by a rank that waits for it.
    for (int i = 0; i < 200; ++i) {
      value = self.rank;
      const MaybeError error = Sum(**made, value);
      ASSERT_FALSE(error) << error->message;
      ASSERT_EQ(value, 1);
    }
  });
}

TEST(NcclFailure, AProcessThatExitsInTheMiddleIsNotHeldUp) {
  const auto ends = RunNccl(2, FakeEnvironment(),
                            [](NcclRank& self) {
                              auto made = self.Make();
                              ASSERT_MADE(made);
                              ASSERT_TRUE(self.bootstrap.Exchange("", NcclRank::In(20)).ok());
                              std::exit(3);
                            },
                            {{0, 3}, {1, 3}});
  EXPECT_EQ(ends, (std::vector<int>{3, 3}));
}

}  // namespace
}  // namespace dtrain::runtime
