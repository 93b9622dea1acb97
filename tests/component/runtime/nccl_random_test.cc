// SPDX-License-Identifier: Apache-2.0
// Random collectives of all kinds, with a random fault of NCCL's or of the GPU's: chance_test.cc
// has those of ranks. DTRAIN_TEST_SEED repeats a run.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "tests/component/runtime/nccl_judge.h"

namespace dtrain::runtime {
namespace {

using Values = std::vector<int32_t>;

constexpr int kMembers = 3;
constexpr int kCalls = 30;

enum class Fault { kNone, kReported, kUnreported, kContext, kSplits, kInit };

struct Scene {
  unsigned seed = 0;
  Fault fault = Fault::kNone;
  int victim = 0, operation = 0;
  std::string version;

  explicit Scene(unsigned seed) : seed(seed) {
    std::mt19937 random(seed);
    fault = static_cast<Fault>(random() % 6);
    victim = static_cast<int>(random() % kMembers);
    operation = static_cast<int>(random() % 25 + 1);
    version = NcclVersions()[random() % NcclVersions().size()];
    if (fault == Fault::kUnreported) version = "fake_nccl_2.18.6";
    if (fault == Fault::kReported && version == "fake_nccl_2.18.6") version = "fake_nccl";
  }

  // Of a collective. Only an error that NCCL keeps to itself has to wait for its end.
  std::string Timeout() const { return fault == Fault::kUnreported ? kShortTimeout : "60"; }

  std::map<std::string, std::string> Environment() const {
    auto environment = OnNcclOf(version);
    environment["DTRAIN_COLLECTIVE_TIMEOUT_SECONDS"] = Timeout();
    environment["DTRAIN_NCCL_INIT_SECONDS"] = "1";
    const std::string who = std::to_string(victim), when = std::to_string(operation);
    if (fault == Fault::kReported || fault == Fault::kUnreported) {
      environment["FAKE_NCCL_ASYNC_ERROR"] = who + ":" + when + ":6";
    }
    if (fault == Fault::kContext) {
      environment["FAKE_CUDA_STICKY"] = "719:" + std::to_string(operation * 10) + ":" + who;
    }
    if (fault == Fault::kSplits) environment["FAKE_NCCL_FAIL_SPLITS"] = "1";
    if (fault == Fault::kInit) environment["FAKE_NCCL_HANG_INIT"] = who;
    return environment;
  }
};

// One rank's part; its choices are those of all, except where its buffers are.
class Actor {
 public:
  Actor(const Scene& scene, int rank)
      : rank_(rank),
        // The timeout, and the abort's 10 s.
        longest_(std::stoi(scene.Timeout()) + 10),
        // The program's own copies would fail with the context. What the victim has on the host
        // goes over its GPU where others have theirs there.
        may_use_gpu_(scene.fault != Fault::kContext || rank != scene.victim),
        shared_(scene.seed),
        own_(scene.seed * 31 + static_cast<unsigned>(rank)) {}

  // The first error of all.
  dtrain_status Run() {
    dtrain_status status = Timed([] { return dtrain_init(nullptr); });
    if (status != DTRAIN_OK) return status;
    const Driver driver(rank_);
    driver_ = &driver;
    status = Timed([&] { return dtrain_group_create(0, -rank_, &group_); });
    for (int i = 0; i < kCalls && status == DTRAIN_OK; ++i) {
      if (shared_() % 10 == 0) {
        dtrain_group other = nullptr;
        const int color = shared_() % 2 == 0 ? 0 : rank_ - 1;  // two groups of one, at most
        status = Timed([&] { return dtrain_group_create(color, 0, &other); });
        if (status == DTRAIN_OK && other != nullptr) {
          status = Timed([&] { return dtrain_group_free(other); });
        }
      } else {
        status = Call();
      }
    }
    driver_ = nullptr;
    return status;
  }

 private:
  template <typename Function>
  dtrain_status Timed(Function call) {
    const auto begin = std::chrono::steady_clock::now();
    const dtrain_status status = call();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, longest_);
    return status;
  }

  static int32_t Of(int rank, size_t i) { return rank * 7 + static_cast<int32_t>(i % 13); }
  static int32_t Sum(size_t i) {
    int32_t all = 0;
    for (int r = 0; r < kMembers; ++r) all += Of(r, i);
    return all;
  }

  dtrain_status Call() {
    constexpr auto kAll = static_cast<size_t>(kMembers);
    const auto kind = shared_() % 6;
    const size_t count = shared_() % 3000 + 1;
    const bool in_group = shared_() % 2 == 0;
    const bool on_gpu = own_() % 3 != 0 && may_use_gpu_, blocks = !in_group && shared_() % 2 == 0;
    const int me = in_group ? kMembers - 1 - rank_ : rank_;
    const auto member = [&](int r) { return in_group ? kMembers - 1 - r : r; };
    const int root = static_cast<int>(shared_() % kAll);
    const size_t in = kind == 3 || kind == 4 ? count * kAll : count;
    const size_t out = kind == 2 || kind == 4 ? count * kAll : count;
    Values input(in), output(out, -1), expected(out);
    for (size_t i = 0; i < in; ++i) input[i] = Of(rank_, i);
    if (kind == 1) output = input;
    for (size_t i = 0; i < out; ++i) {
      const int from = member(static_cast<int>(i / count));
      const size_t mine = static_cast<size_t>(me) * count;
      expected[i] = kind == 1   ? Of(member(root), i)
                    : kind == 2 ? Of(from, i % count)
                    : kind == 3 ? Sum(mine + i)
                    : kind == 4 ? Of(from, mine + i % count)
                                : Sum(i);
    }
    char* gpu = nullptr;
    void *from = input.data(), *to = output.data();
    if (on_gpu) {
      gpu = static_cast<char*>(driver_->Allocate((in + out) * 4));
      driver_->Put(gpu, input.data(), in * 4);
      driver_->Put(gpu + in * 4, output.data(), out * 4);
      from = gpu;
      to = gpu + in * 4;
    }
    const dtrain_status status =
        Timed([&] { return Collect(kind, from, to, count, root, blocks, in_group); });
    if (status != DTRAIN_OK) return status;
    const bool takes = kind != 5 || me == root;
    // A failure that comes now may leave anything in it.
    if (on_gpu) driver_->Get(output.data(), to, out * 4);
    const dtrain_status after = Timed([] { return dtrain_barrier(); });
    if (after != DTRAIN_OK) return after;
    if (takes) {
      EXPECT_EQ(output, expected) << "kind " << kind;
    }
    return DTRAIN_OK;
  }

  dtrain_status Collect(unsigned kind, void* from, void* to, size_t count, int root, bool blocks,
                        bool in_group) {
    constexpr dtrain_type kType = DTRAIN_INT32;
    if (blocks) {
      switch (kind) {
        case 0:
          return dtrain_allreduce(from, to, count, kType, DTRAIN_SUM);
        case 1:
          return dtrain_broadcast(to, count, kType, root);
        case 2:
          return dtrain_allgather(from, to, count, kType);
        case 3:
          return dtrain_reduce_scatter(from, to, count, kType, DTRAIN_SUM);
        case 4:
          return dtrain_alltoall(from, to, count, kType);
        default:
          return dtrain_reduce(from, to, count, kType, DTRAIN_SUM, root);
      }
    }
    dtrain_options options = DTRAIN_OPTIONS_INIT;
    options.group = in_group ? group_ : nullptr;
    dtrain_handle handle = 0;
    dtrain_status status = DTRAIN_OK;
    switch (kind) {
      case 0:
        status = dtrain_allreduce_async(from, to, count, kType, DTRAIN_SUM, &options, &handle);
        break;
      case 1:
        status = dtrain_broadcast_async(to, count, kType, root, &options, &handle);
        break;
      case 2:
        status = dtrain_allgather_async(from, to, count, kType, &options, &handle);
        break;
      case 3:
        status = dtrain_reduce_scatter_async(from, to, count, kType, DTRAIN_SUM, &options, &handle);
        break;
      case 4:
        status = dtrain_alltoall_async(from, to, count, kType, &options, &handle);
        break;
      default:
        status = dtrain_reduce_async(from, to, count, kType, DTRAIN_SUM, root, &options, &handle);
    }
    return status == DTRAIN_OK ? dtrain_wait(handle) : status;
  }

  const int rank_;
  const std::chrono::seconds longest_;
  const bool may_use_gpu_;
  std::mt19937 shared_, own_;
  const Driver* driver_ = nullptr;
  dtrain_group group_ = nullptr;
};

// What each rank said, for the test's process.
struct Sayings {
  struct {
    int status;
    char text[1000];
  } of[kMembers];
};

void ExpectOneCause(const Scene& scene, const Sayings& sayings) {
  const std::string victim = "rank " + std::to_string(scene.victim);
  for (int r = 0; r < kMembers; ++r) {
    const auto status = static_cast<dtrain_status>(sayings.of[r].status);
    const std::string text = sayings.of[r].text;
    switch (scene.fault) {
      case Fault::kNone:
      case Fault::kSplits:
        EXPECT_EQ(status, DTRAIN_OK) << text;
        break;
      case Fault::kUnreported:
        if (status != DTRAIN_OK) {
          EXPECT_EQ(status, DTRAIN_ERROR_TIMEOUT) << text;
        }
        break;
      case Fault::kReported:
        if (status != DTRAIN_OK) {
          EXPECT_NE(text.find("NCCL says: injected"), std::string::npos) << text;
        }
        break;
      case Fault::kContext:
        if (status != DTRAIN_OK && r != scene.victim) {
          EXPECT_NE(text.find(victim), std::string::npos) << text;
        }
        break;
      case Fault::kInit:
        EXPECT_NE(status, DTRAIN_OK);
        break;
    }
    EXPECT_EQ(status == DTRAIN_OK, sayings.of[0].status == DTRAIN_OK) << r << ": " << text;
  }
}

TEST(NcclRandom, AFaultOfNcclsHasTheSameCauseOnAllRanksInTime) {
  const char* text = std::getenv("DTRAIN_TEST_SEED");
  const auto first = text != nullptr ? static_cast<unsigned>(std::strtoul(text, nullptr, 10))
                                     : std::random_device()();
  auto* const sayings = static_cast<Sayings*>(
      mmap(nullptr, sizeof(Sayings), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  for (unsigned i = 0; i < 8 && !HasFailure(); ++i) {
    const Scene scene(first + i);
    std::cout << "DTRAIN_TEST_SEED=" << scene.seed << " " << scene.version << ", fault "
              << static_cast<int>(scene.fault) << " of rank " << scene.victim << " at operation "
              << scene.operation << std::endl;
    RunJobOf(kMembers, scene.Environment(), [&](int rank) {
      auto& mine = sayings->of[rank];
      mine.status = Actor(scene, rank).Run();
      std::strncpy(mine.text, dtrain_last_error(), sizeof(mine.text) - 1);
      if (scene.fault == Fault::kContext) {
        static_cast<void>(dtrain_finalize());
      } else if (scene.fault != Fault::kInit) {
        EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
      }
      EXPECT_EQ(Seen("ended_inside") + Seen("after_end") + Seen("overlaps"), 0);
    });
    ExpectOneCause(scene, *sayings);
    if (HasFailure()) {
      for (const auto& one : sayings->of) std::cout << one.status << " " << one.text << std::endl;
    }
  }
  munmap(sayings, sizeof(Sayings));
}

}  // namespace
}  // namespace dtrain::runtime
