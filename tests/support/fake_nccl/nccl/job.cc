// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl/nccl/job.h"

#include <cstdint>
#include <mutex>
#include <set>
#include <utility>

#include "tests/support/fake_nccl/nccl/comm.h"
#include "tests/support/fake_nccl/per_thread.h"

namespace fake_nccl {
namespace {

// Which jobs have not been dropped: who holds one may not be the one who drops it.
struct Living {
  std::mutex mutex;
  std::set<uint64_t> numbers;
  uint64_t next = 0;
};

Living& TheLiving() {
  static auto* const living = new Living;
  return *living;
}

// Of versions whose jobs lie in the thread that began them.
struct OfThread {
  Job* job = nullptr;
  uint64_t number = 0;
  ~OfThread() { Leave(); }
  bool Busy() const {
    const std::lock_guard lock(TheLiving().mutex);
    return job != nullptr && TheLiving().numbers.count(number) != 0 && !job->done.load();
  }
  void Leave() {
    if (Busy()) {
      TheWitness().jobs_lost.fetch_add(1);
      job->Drop();
    }
    job = nullptr;
  }
};

OfThread& JobOfThread() {
  static const auto* const all = new PerThread<OfThread>;
  return all->Get();
}

}  // namespace

Job::Job() {
  const std::lock_guard lock(TheLiving().mutex);
  number = ++TheLiving().next;
  TheLiving().numbers.insert(number);
}

void Job::Start(std::function<void()> work) {
  TheWitness().threads.fetch_add(1);
  std::thread([this, work = std::move(work)] {
    work();
    done.store(true);
  }).detach();
}

void Job::Join() {
  for (Pause pause; !done.load(); pause()) {
  }
}

void Job::Drop() {
  {
    const std::lock_guard lock(TheLiving().mutex);
    TheLiving().numbers.erase(number);
  }
#ifdef __SANITIZE_ADDRESS__
  delete this;
#endif
}

int BeginJob(const std::vector<ncclComm*>& comms, std::function<void()> work) {
  const Profile& profile = TheProfile();
  if (profile.job_in_thread) {
    if (profile.one_job_per_thread && JobOfThread().Busy()) {
      return Fail(kInvalidUsage, "a group is already in progress in this thread");
    }
    JobOfThread().Leave();
  }
  auto* const job = new Job;
  if (profile.job_in_thread) {
    JobOfThread().job = job;
    JobOfThread().number = job->number;
  }
  for (ncclComm* comm : comms) {
    comm->state.store(kInProgress);
    // Before 2.19.1 nothing but the thread leads to it.
    if (!profile.one_job_per_thread) comm->job = job;
  }
  job->Start(std::move(work));
  return kInProgress;
}

}  // namespace fake_nccl
