// SPDX-License-Identifier: Apache-2.0
// Random collectives and a random incident, on CPUs and on each version of NCCL. DTRAIN_TEST_SEED
// repeats a run.
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "tests/component/runtime/nccl_judge.h"

namespace dtrain::runtime {
namespace {

constexpr int kRanks = 3;
constexpr int kSteps = 60;
constexpr size_t kMost = 5000;

enum class Incident { kNone, kDies, kStops, kLeaves };

struct Plan {
  unsigned seed = 0;
  Incident incident = Incident::kNone;
  int victim = 0, step = 0;
};

// On GPUs no rank is stopped: the aborts of all others wait for it (NcclFailure has that).
Plan MakePlan(unsigned seed, bool on_gpu) {
  std::mt19937 random(seed);
  Plan plan;
  plan.seed = seed;
  plan.incident = static_cast<Incident>(random() % 4);
  if (on_gpu && plan.incident == Incident::kStops) plan.incident = Incident::kDies;
  plan.victim = static_cast<int>(random() % kRanks);
  plan.step = static_cast<int>(random() % kSteps);
  return plan;
}

unsigned Seed() {
  const char* text = std::getenv("DTRAIN_TEST_SEED");
  return text != nullptr ? static_cast<unsigned>(std::strtoul(text, nullptr, 10))
                         : std::random_device()();
}

// One rank's part. All draw the same numbers, but for where their buffers are.
class Worker {
 public:
  Worker(const Plan& plan, int rank, bool on_gpu)
      : plan_(plan), rank_(rank), on_gpu_(on_gpu), shared_(plan.seed + 1), own_(plan.seed + rank) {}

  // The first error; DTRAIN_OK when all went well.
  dtrain_status Run() {
    EXPECT_EQ(dtrain_init(nullptr), DTRAIN_OK) << dtrain_last_error();
    if (on_gpu_) driver_.emplace(rank_);
    dtrain_status status = dtrain_group_create(0, -rank_, &group_);
    for (int step = 0; step < kSteps && status == DTRAIN_OK; ++step) {
      if (step == plan_.step && rank_ == plan_.victim && !Survive()) return DTRAIN_OK;
      status = Step();
    }
    return status;
  }

 private:
  // False: this rank's part is over.
  bool Survive() {
    switch (plan_.incident) {
      case Incident::kNone:
        return true;
      case Incident::kDies:
        _exit(7);
      case Incident::kStops:
        raise(SIGSTOP);
        return false;
      case Incident::kLeaves:
        EXPECT_NE(dtrain_finalize(), DTRAIN_OK);
        return false;
    }
    return true;
  }

  dtrain_status Step() {
    const size_t count = shared_() % kMost + 1;
    const bool blocking = shared_() % 3 == 0;
    const bool in_group = !blocking && shared_() % 2 == 0;
    const int calls = blocking ? 1 : static_cast<int>(shared_() % 6 + 1);
    std::vector<Buffer> buffers;
    std::vector<dtrain_handle> handles;
    dtrain_status status = DTRAIN_OK;
    for (int i = 0; i < calls; ++i) buffers.push_back(Make(count + static_cast<size_t>(i)));
    if (blocking) {
      status = dtrain_allreduce(buffers[0].at, buffers[0].at, count, DTRAIN_INT64, DTRAIN_SUM);
    }
    dtrain_options options = DTRAIN_OPTIONS_INIT;
    options.group = in_group ? group_ : nullptr;
    for (int i = 0; i < calls && !blocking && status == DTRAIN_OK; ++i) {
      handles.push_back(0);
      status = dtrain_allreduce_async(
          buffers[static_cast<size_t>(i)].at, buffers[static_cast<size_t>(i)].at,
          count + static_cast<size_t>(i), DTRAIN_INT64, DTRAIN_SUM, &options, &handles.back());
    }
    for (const dtrain_handle handle : handles) {
      const dtrain_status ended = handle != 0 ? dtrain_wait(handle) : DTRAIN_OK;
      if (status == DTRAIN_OK) status = ended;
    }
    if (status != DTRAIN_OK) return status;
    // What failed since a result was there may have left anything in it: nothing had, when the next
    // calls go well.
    for (const Buffer& buffer : unchecked_) {
      EXPECT_EQ(buffer.host, std::vector<int64_t>(buffer.host.size(), kRanks * (kRanks + 1) / 2));
    }
    for (Buffer& buffer : buffers) {
      if (buffer.gpu != nullptr) {
        driver_->Get(buffer.host.data(), buffer.gpu, buffer.host.size() * 8);
      }
    }
    unchecked_ = std::move(buffers);
    return status;
  }

  struct Buffer {
    std::vector<int64_t> host;
    void* gpu = nullptr;
    void* at = nullptr;
  };
  Buffer Make(size_t count) {
    Buffer buffer;
    buffer.host.assign(count, rank_ + 1);
    if (on_gpu_ && own_() % 4 != 0) {
      buffer.gpu = driver_->Allocate(count * 8);
      driver_->Put(buffer.gpu, buffer.host.data(), count * 8);
    }
    buffer.at = buffer.gpu != nullptr ? buffer.gpu : buffer.host.data();
    return buffer;
  }
  const Plan plan_;
  const int rank_;
  const bool on_gpu_;
  std::mt19937 shared_, own_;
  std::optional<Driver> driver_;
  dtrain_group group_ = nullptr;
  std::vector<Buffer> unchecked_;
};

void ExpectCause(const Plan& plan, dtrain_status status) {
  const std::string text = dtrain_last_error();
  // Where the text is about the group, it may be that group's number, which runs the other way
  // round.
  const auto says = [&](const std::string& before, const std::string& after) {
    const auto of = [&](int rank) {
      return text.find(before + "rank " + std::to_string(rank) + after) != std::string::npos;
    };
    return of(plan.victim) ||
           (text.find(" the group of ranks ") != std::string::npos && of(kRanks - 1 - plan.victim));
  };
  switch (plan.incident) {
    case Incident::kNone:
      EXPECT_EQ(status, DTRAIN_OK) << text;
      return;
    case Incident::kDies:
      EXPECT_EQ(status, DTRAIN_ERROR_NETWORK) << text;
      EXPECT_TRUE(says("lost the connection to ", "")) << text;
      return;
    case Incident::kStops:
      EXPECT_EQ(status, DTRAIN_ERROR_TIMEOUT) << text;
      EXPECT_TRUE(says("", "")) << text;
      return;
    case Incident::kLeaves:
      EXPECT_EQ(status, DTRAIN_ERROR_MISMATCH) << text;
      EXPECT_TRUE(says("", " is leaving the job")) << text;
      return;
  }
}

class Chance : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, Chance, testing::ValuesIn([] {
                           std::vector<std::string> all = NcclVersions();
                           all.push_back("cpu");
                           return all;
                         }()),
                         [](const auto& backend) {
                           std::string name = backend.param;
                           for (char& c : name) c = c == '.' ? '_' : c;
                           return name;
                         });

TEST_P(Chance, AnIncidentHasTheSameCauseOnAllRanksInTime) {
  const unsigned first = Seed();
  const bool on_gpu = GetParam() != "cpu";
#ifdef __SANITIZE_THREAD__
  constexpr unsigned kPlans = 2;  // of half a minute each
#else
  constexpr unsigned kPlans = 4;
#endif
  for (unsigned i = 0; i < kPlans; ++i) {
    const Plan plan = MakePlan(first + i, on_gpu);
    std::cout << "DTRAIN_TEST_SEED=" << plan.seed << " incident " << static_cast<int>(plan.incident)
              << " of rank " << plan.victim << " at step " << plan.step << std::endl;
    auto environment = on_gpu ? OnNcclOf(GetParam()) : std::map<std::string, std::string>();
    environment["DTRAIN_BACKEND"] = on_gpu ? "nccl" : "cpu";
    // It is how the others learn of a rank that is stopped, and of no other.
    const bool stops = plan.incident == Incident::kStops;
    environment["DTRAIN_COLLECTIVE_TIMEOUT_SECONDS"] = stops ? kShortTimeout : "60";
    std::map<int, int> ends;
    if (plan.incident == Incident::kDies) ends[plan.victim] = 7;
    if (plan.incident == Incident::kStops) ends[plan.victim] = -SIGKILL;
    void* const pids =
        mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    auto* const pid_of = static_cast<std::atomic<pid_t>*>(pids);
    auto* const left = reinterpret_cast<std::atomic<int>*>(pid_of + kRanks);
    RunJobOf(
        kRanks, environment,
        [&](int rank) {
          pid_of[rank].store(getpid());
          const dtrain_status status = Worker(plan, rank, on_gpu).Run();
          if (rank == plan.victim && plan.incident != Incident::kNone) return;
          ExpectCause(plan, status);
          EXPECT_EQ(dtrain_finalize(), DTRAIN_OK) << dtrain_last_error();
          if (on_gpu) ExpectNoOffence();
          // The last one that is not stopped ends the one that is.
          if (plan.incident == Incident::kStops && left->fetch_add(1) == kRanks - 2) {
            KillRank(pid_of[plan.victim]);
          }
        },
        ends);
    munmap(pids, 4096);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace dtrain::runtime
