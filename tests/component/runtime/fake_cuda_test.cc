// SPDX-License-Identifier: Apache-2.0
// The fake driver finds out who misuses it: each test does something wrong, or relies on what a GPU
// does not promise.
#include <vector>

#include "tests/component/runtime/fake_libraries.h"

namespace dtrain::runtime {
namespace {

using fakes::Beside;
using fakes::Block;
using fakes::Cuda;

constexpr int kNotReady = 600, kIllegalAddress = 700;

void Alone(const std::function<void(const Cuda&)>& body,
           std::map<std::string, std::string> environment = {}) {
  RanksOptions options;
  options.environment = std::move(environment);
  options.deadline = std::chrono::seconds(40);
  Ranks::Run(
      1, [&](int) { body(Cuda(0)); }, options);
}

TEST(FakeCuda, AMemsetOnTheLegacyStreamIsLate) {
  Alone([](const Cuda& cuda) {
    const auto ordered = cuda.MakeStream(fakes::kOrdered), free = cuda.MakeStream(fakes::kFree);
    char* const memory = cuda.Allocate(100);
    cuda.Put(memory, std::vector<char>(100, 'x'), free);
    Block block(cuda, fakes::kLegacy);
    ASSERT_EQ(cuda.Memset(memory, 0, 100), 0);
    EXPECT_EQ(cuda.Take<char>(memory, 100, free), std::vector<char>(100, 'x'));
    Beside reads([&] {
      cuda.Use(0);
      return cuda.Take<char>(memory, 100, ordered)[99];
    });
    EXPECT_TRUE(reads.Hangs());
    block.Open();
    EXPECT_TRUE(reads.Ends());
    EXPECT_EQ(reads.code(), 0);
  });
}

TEST(FakeCuda, TheLegacyStreamWaitsForOrderedStreamsAndNotForFreeOnes) {
  for (const unsigned flags : {fakes::kOrdered, fakes::kFree}) {
    Alone([flags](const Cuda& cuda) {
      Block block(cuda, cuda.MakeStream(flags));
      const auto event = cuda.MakeEvent();
      ASSERT_EQ(cuda.Record(event, fakes::kLegacy), 0);
      if (flags == fakes::kFree) {
        EXPECT_TRUE(fakes::Becomes([&] { return cuda.Query(event) == 0; }));
      } else {
        EXPECT_FALSE(
            fakes::Becomes([&] { return cuda.Query(event) == 0; }, std::chrono::milliseconds(200)));
      }
    });
  }
}

TEST(FakeCuda, AFreedBlockIsHandedOutAgainAtOnceWithWhatIsInIt) {
  Alone([](const Cuda& cuda) {
    const auto stream = cuda.MakeStream(fakes::kFree);
    char* const memory = cuda.Allocate(5000);
    cuda.Put(memory, std::vector<char>(5000, 'x'), stream);
    ASSERT_EQ(cuda.Free(memory), 0);
    ASSERT_EQ(cuda.Allocate(5001), memory);
    EXPECT_EQ(cuda.Take<char>(memory, 5000, stream), std::vector<char>(5000, 'x'));
    EXPECT_EQ(cuda.Free(memory + 1), 1);
  });
}

TEST(FakeCuda, FreeingWaitsForEveryStream) {
  Alone([](const Cuda& cuda) {
    char* const memory = cuda.Allocate(100);
    const auto stream = cuda.MakeStream(fakes::kFree);
    Block block(cuda, stream);
    // The work of a destroyed stream goes on.
    ASSERT_EQ(cuda.Get<int(void*)>("cuStreamDestroy_v2")(stream), 0);
    EXPECT_NE(cuda.Record(cuda.MakeEvent(), stream), 0);
    Beside frees([&] {
      cuda.Use(0);
      return cuda.Free(memory);
    });
    EXPECT_TRUE(frees.Hangs());
    block.Open();
    EXPECT_TRUE(frees.Ends());
  });
}

TEST(FakeCuda, AQuestionBlocksWhileAnotherThreadFrees) {
  Alone(
      [](const Cuda& cuda) {
        char* const memory = cuda.Allocate(100);
        const auto event = cuda.MakeEvent();
        Block block(cuda, cuda.MakeStream(fakes::kFree));
        Beside frees([&] {
          cuda.Use(0);
          return cuda.Free(memory);
        });
        ASSERT_TRUE(frees.Hangs());
        Beside asks([&] {
          cuda.Use(0);
          return cuda.Query(event);
        });
        EXPECT_TRUE(asks.Hangs());
        block.Open();
        EXPECT_TRUE(asks.Ends());
      },
      {{"FAKE_CUDA_QUERY_BLOCKS_MS", "20000"}});
}

TEST(FakeCuda, AStreamWaitsForAnEventsRecordOfThatMoment) {
  Alone([](const Cuda& cuda) {
    const auto first = cuda.MakeStream(fakes::kFree), second = cuda.MakeStream(fakes::kFree);
    const auto event = cuda.MakeEvent();
    EXPECT_EQ(cuda.Query(event), 0) << "never recorded is done";
    ASSERT_EQ(cuda.Record(event, first), 0);
    ASSERT_EQ(cuda.Wait(second, event), 0);
    Block block(cuda, first);
    ASSERT_EQ(cuda.Record(event, first), 0);
    EXPECT_TRUE(fakes::Becomes([&] { return cuda.QueryStream(second) == 0; }));
    EXPECT_EQ(cuda.Query(event), kNotReady);
    ASSERT_EQ(cuda.Wait(second, event), 0);
    EXPECT_EQ(cuda.QueryStream(second), kNotReady);
  });
}

TEST(FakeCuda, WithoutTheRightContextCallsFail) {
  Alone([](const Cuda& cuda) {
    const auto stream = cuda.MakeStream(fakes::kFree);
    const auto event = cuda.MakeEvent();
    Beside none([&] { return cuda.Query(event); });
    EXPECT_TRUE(none.Ends());
    EXPECT_EQ(none.code(), 201);
    const fakes::Address own = Cuda::Number(cuda.Allocate(4));
    Beside asks([&cuda, own] {
      int value = -1;
      return cuda.Get<int(void*, int, fakes::Address)>("cuPointerGetAttribute")(&value, 2, own);
    });
    EXPECT_TRUE(asks.Ends());
    EXPECT_EQ(asks.code(), 201);
    cuda.Use(1);
    EXPECT_EQ(cuda.Query(event), 400);
    EXPECT_EQ(cuda.Record(event, stream), 400);
    EXPECT_EQ(cuda.Record(event, fakes::kLegacy), 400) << "that is another GPU's stream";
  });
}

TEST(FakeCuda, PinnedMemoryIsReadWhenTheCopyRunsAndOtherMemoryBefore) {
  Alone([](const Cuda& cuda) {
    void* place = nullptr;
    ASSERT_EQ((cuda.Get<int(void**, size_t, unsigned)>("cuMemHostAlloc")(&place, 4, 1)), 0);
    auto* const pinned = static_cast<char*>(place);
    std::vector<char> pageable(4, 'x');
    std::memset(pinned, 'x', 4);
    char* const memory = cuda.Allocate(8);
    const auto stream = cuda.MakeStream(fakes::kFree);
    Block block(cuda, stream);
    ASSERT_EQ(cuda.ToDevice(memory, pinned, 4, stream), 0);
    ASSERT_EQ(cuda.ToDevice(memory + 4, pageable.data(), 4, stream), 0);
    std::memset(pinned, 'y', 4);
    std::memset(pageable.data(), 'y', 4);
    block.Open();
    const auto bytes = cuda.Take<char>(memory, 8, stream);
    EXPECT_EQ(std::string(bytes.begin(), bytes.end()), "yyyyxxxx");
  });
}

TEST(FakeCuda, ALaunchIntoAFullQueueBlocks) {
  Alone([](const Cuda& cuda) {
    const auto stream = cuda.MakeStream(fakes::kFree);
    const auto event = cuda.MakeEvent();
    Block block(cuda, stream);
    Beside fills([&] {
      cuda.Use(0);
      for (int i = 0; i < 1024; ++i) cuda.Record(event, stream);
      return 0;
    });
    EXPECT_TRUE(fills.Hangs());
    block.Open();
    EXPECT_TRUE(fills.Ends());
  });
}

TEST(FakeCuda, APointerSaysWhoseItIs) {
  Alone([](const Cuda& cuda) {
    const auto ask = [&](const void* pointer, int attribute, int& value) {
      return cuda.Get<int(void*, int, fakes::Address)>("cuPointerGetAttribute")(
          &value, attribute, Cuda::Number(pointer));
    };
    cuda.Use(3);
    char* const memory = cuda.Allocate(10);
    int value = -1;
    EXPECT_EQ(ask(memory + 9, 2, value), 0);
    EXPECT_EQ(value, 2);
    EXPECT_EQ(ask(memory, 8, value), 0);
    EXPECT_EQ(value, 0);
    EXPECT_EQ(ask(memory, 9, value), 0);
    EXPECT_EQ(value, 3);
    EXPECT_EQ(ask(memory + 10, 2, value), 1);
    EXPECT_EQ(ask(&value, 2, value), 1);
  });
}

TEST(FakeCuda, WorkOnMemoryThatIsGoneLosesTheContext) {
  Alone([](const Cuda& cuda) {
    char* const memory = cuda.Allocate(100);
    const auto stream = cuda.MakeStream(fakes::kFree), other = cuda.MakeStream(fakes::kFree);
    const auto event = cuda.MakeEvent();
    ASSERT_EQ(cuda.Get<unsigned char>("fake_cuda_canary")[7], 0);
    // Freeing waits for the copy; taking the memory away does not.
    ASSERT_EQ(cuda.ToDevice(memory, "x", 1, stream), 0);
    ASSERT_EQ(cuda.Free(memory), 0);
    EXPECT_EQ(cuda.faults(), 0);
    EXPECT_EQ(cuda.ToDevice(memory, "x", 1, stream), 1);
    void* const mapped = cuda.Get<void*(size_t, int)>("fake_cuda_map")(100, 0);
    Block block(cuda, stream);
    ASSERT_EQ(cuda.ToDevice(mapped, "x", 1, stream), 0);
    ASSERT_EQ(cuda.Get<int(void*)>("fake_cuda_unmap")(mapped), 0);
    block.Open();
    EXPECT_TRUE(fakes::Becomes([&] { return cuda.faults() == 1; }));
    EXPECT_EQ(cuda.Get<unsigned char>("fake_cuda_canary")[7], 0xdb);
    EXPECT_EQ(cuda.QueryStream(other), kIllegalAddress);
    EXPECT_EQ(cuda.Record(event, other), kIllegalAddress);
  });
}

TEST(FakeCuda, AContextCanBeLostAfterSoManyOperations) {
  Alone(
      [](const Cuda& cuda) {
        const auto stream = cuda.MakeStream(fakes::kFree);
        const auto event = cuda.MakeEvent();
        for (int i = 0; i < 3; ++i) EXPECT_EQ(cuda.Record(event, stream), 0);
        EXPECT_EQ(cuda.Record(event, stream), 719);
        EXPECT_EQ(cuda.Query(event), 719);
        cuda.Use(1);
        EXPECT_EQ(cuda.Record(cuda.MakeEvent(), fakes::kLegacy), 0);
      },
      {{"FAKE_CUDA_STICKY", "719:3:0"}});
}

TEST(FakeCuda, SlicesOfAGpuHaveItsAddressAndItsOldUuid) {
  Alone(
      [](const Cuda& cuda) {
        char bus[2][16];
        unsigned char old[2][16], now[2][16];
        for (int i = 0; i < 2; ++i) {
          ASSERT_EQ((cuda.Get<int(char*, int, int)>("cuDeviceGetPCIBusId")(bus[i], 16, i)), 0);
          ASSERT_EQ((cuda.Get<int(unsigned char*, int)>("cuDeviceGetUuid")(old[i], i)), 0);
          ASSERT_EQ((cuda.Get<int(unsigned char*, int)>("cuDeviceGetUuid_v2")(now[i], i)), 0);
        }
        EXPECT_STREQ(bus[0], bus[1]);
        EXPECT_EQ(std::memcmp(old[0], old[1], 16), 0);
        EXPECT_NE(std::memcmp(now[0], now[1], 16), 0);
        EXPECT_NE(std::memcmp(now[0], old[0], 16), 0);
      },
      {{"FAKE_CUDA_MIG", "1"}});
}

struct Capturing {
  explicit Capturing(const Cuda& cuda) : cuda(cuda), stream(cuda.MakeStream(fakes::kFree)) {}
  int Begin(int mode) { return cuda.Get<int(void*, int)>("cuStreamBeginCapture_v2")(stream, mode); }
  int End() { return cuda.Get<int(void*, void**)>("cuStreamEndCapture")(stream, &graph); }

  const Cuda& cuda;
  const fakes::Stream stream;
  void* graph = nullptr;
};

constexpr int kGlobalMode = 0, kThreadLocalMode = 1, kRelaxedMode = 2;

TEST(FakeCuda, AnotherThreadsQuestionOrAllocationSpoilsAGlobalCapture) {
  for (const bool allocates : {false, true}) {
    for (const int mode : {kGlobalMode, kThreadLocalMode, kRelaxedMode}) {
      for (const int others : {kGlobalMode, kThreadLocalMode}) {
        Alone([&](const Cuda& cuda) {
          const auto event = cuda.MakeEvent();
          Capturing capture(cuda);
          ASSERT_EQ(capture.Begin(mode), 0);
          Beside other([&] {
            cuda.Use(0);
            int own = others;
            cuda.Get<int(int*)>("cuThreadExchangeStreamCaptureMode")(&own);
            fakes::Address memory = 0;
            return allocates ? cuda.Get<int(fakes::Address*, size_t)>("cuMemAlloc_v2")(&memory, 10)
                             : cuda.Query(event);
          });
          ASSERT_TRUE(other.Ends());
          const bool spoils = mode == kGlobalMode && others == kGlobalMode;
          EXPECT_EQ(other.code(), spoils ? 900 : 0);
          EXPECT_EQ(capture.End(), spoils ? 901 : 0);
        });
      }
    }
  }
}

TEST(FakeCuda, ACapturedEventMayNotBeAskedAndAForkMustBeJoined) {
  Alone([](const Cuda& cuda) {
    const auto side = cuda.MakeStream(fakes::kFree);
    const auto event = cuda.MakeEvent(), back = cuda.MakeEvent();
    for (const bool joins : {true, false}) {
      Capturing capture(cuda);
      ASSERT_EQ(capture.Begin(kRelaxedMode), 0);
      ASSERT_EQ(cuda.Record(event, capture.stream), 0);
      ASSERT_EQ(cuda.Wait(side, event), 0);
      ASSERT_EQ(cuda.Record(back, side), 0);
      if (joins) {
        ASSERT_EQ(cuda.Wait(capture.stream, back), 0);
      }
      EXPECT_EQ(capture.End(), joins ? 0 : 904);
    }
    Capturing capture(cuda);
    ASSERT_EQ(capture.Begin(kRelaxedMode), 0);
    ASSERT_EQ(cuda.Record(event, capture.stream), 0);
    EXPECT_EQ(cuda.Query(event), 900);
    EXPECT_EQ(cuda.Record(event, capture.stream), 0);
    EXPECT_EQ(capture.End(), 901);
  });
}

}  // namespace
}  // namespace dtrain::runtime
