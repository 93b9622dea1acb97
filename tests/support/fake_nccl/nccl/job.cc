// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl/nccl/job.h"

#include <utility>

#include "tests/support/fake_nccl/nccl/comm.h"

namespace fake_nccl {
namespace {

// Of versions whose jobs lie in the thread that began them.
struct OfThread {
  Job* job = nullptr;
  ~OfThread() { Leave(); }
  void Leave() {
    if (job == nullptr) return;
    if (!job->done.load()) TheWitness().jobs_lost.fetch_add(1);
    // A communicator that has not asked since leads to nowhere now.
    job->Drop();
    job = nullptr;
  }
};
thread_local OfThread of_thread;

}  // namespace

void Job::Start(std::function<void()> work) {
  TheWitness().threads.fetch_add(1);
  thread_ = std::thread([this, work = std::move(work)] {
    work();
    done.store(true);
  });
}

void Job::Join() {
  if (thread_.joinable()) thread_.join();
}

void Job::Drop() {
  if (thread_.joinable()) thread_.detach();
#ifdef __SANITIZE_ADDRESS__
  delete this;
#endif
}

int BeginJob(const std::vector<ncclComm*>& comms, std::function<void()> work) {
  const Profile& profile = TheProfile();
  if (profile.job_in_thread) {
    if (profile.one_job_per_thread && of_thread.job != nullptr && !of_thread.job->done.load()) {
      return Fail(kInvalidUsage, "a group is already in progress in this thread");
    }
    of_thread.Leave();
  }
  auto* const job = new Job;
  if (profile.job_in_thread) of_thread.job = job;
  for (ncclComm* comm : comms) {
    comm->state.store(kInProgress);
    // Before 2.19.1 nothing but the thread leads to it.
    if (!profile.one_job_per_thread) comm->job = job;
  }
  job->Start(std::move(work));
  return kInProgress;
}

}  // namespace fake_nccl
