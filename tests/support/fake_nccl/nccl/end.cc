// SPDX-License-Identifier: Apache-2.0
// How communicators end, and what they say of themselves.
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/support/fake_nccl/cuda/fake_cuda.h"
#include "tests/support/fake_nccl/nccl/group.h"
#include "tests/support/fake_nccl/nccl/knobs.h"

namespace fake_nccl {
namespace {

// For ever behind a kernel that does not end, and for each graph that lives, abort or not.
int AwaitIdle(ncclComm& comm) {
  for (Pause pause; comm.line->unfinished() > 0; pause()) {
    if (fake_cuda_lost(comm.device) != 0) return Fail(kCudaError, "the context is lost");
    if (comm.line->abort.load()) break;
  }
  for (Pause pause; comm.line->captured.load() > 0; pause()) {
  }
  return kSuccess;
}

int RunFinalize(ncclComm& comm) {
  if (Asked("FAKE_NCCL_HANG_FINALIZE", comm.rank)) Hang();
  return AwaitIdle(comm);
}

// This rank's connections are closed; the others of its machine may still use them.
void CloseWithOthers(ncclComm& comm) {
  World* const world = comm.line->world.get();
  if (world == nullptr) return;
  world->mine().closed.store(1);
  for (int r = 0; r < world->size(); ++r) {
    Entry& other = world->entry(r);
    if (other.host != world->mine().host) continue;
    for (Pause pause; other.closed.load() == 0 && world->Lives(r); pause()) {
    }
  }
}

int RunDestroy(ncclComm& comm) {
  if (Asked("FAKE_NCCL_HANG_DESTROY", comm.rank)) Hang();
  TheWitness().destroys.fetch_add(1);
  if (!comm.registrations.empty()) TheWitness().ended_registered.fetch_add(1);
  JoinJob(comm);
  const int code = AwaitIdle(comm);
  CloseWithOthers(comm);
  return code;
}

int RunAbort(ncclComm& comm) {
  if (Asked("FAKE_NCCL_HANG_ABORT", comm.rank) || TheProfile().abort_hangs) Hang();
  if (TheProfile().abort_joins_job) JoinJob(comm);
  for (Pause pause; comm.line->captured.load() > 0; pause()) {
  }
  // Freeing memory waits for the whole GPU, kernels of other communicators included.
  fake_cuda_drain(comm.device);
  if (Number("FAKE_NCCL_CLOSES_ALONE", 0) == 0 || TheProfile().version < 22403) {
    CloseWithOthers(comm);
  }
  return kSuccess;
}

// Queues within an open group, in the versions that do.
int End(ncclComm* comm, int (*run)(ncclComm&)) {
  const auto whole = [comm, run] {
    int code = kSuccess;
    {
      const CommContext context(comm->device);
      code = run(*comm);
    }
    Free(comm);
    return code;
  };
  if (!TheProfile().ends_are_grouped) return whole();
  BeginGroup();
  Add(HostTask{comm, true, whole});
  return EndGroup();
}

// May come beside any call that works with a communicator that blocks, and beside none that ends
// it. With others it joins what the call has begun.
class Question {
 public:
  explicit Question(ncclComm& comm) : comm_(comm) {
    comm_.inside.fetch_add(1);
    const pid_t user = comm_.user.load();
    if (!comm_.blocking && TheProfile().question_joins_job && user != 0 && user != gettid()) {
      TheWitness().overlaps.fetch_add(1);
    }
    static const int ms = Number("FAKE_NCCL_QUESTION_MS", 0);
    if (ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  }
  ~Question() { comm_.inside.fetch_sub(1); }
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;

 private:
  ncclComm& comm_;
};

bool Gone(ncclComm* comm) {
  if (!comm->gone.load()) return false;
  TheWitness().after_end.fetch_add(1);
  return true;
}

}  // namespace
}  // namespace fake_nccl

using namespace fake_nccl;

FAKE_EXPORT int ncclCommFinalize(ncclComm* comm) {
  if (comm == nullptr) return kSuccess;
  const CommCall call(comm);
  if (const int code = CheckReady(*comm)) return code;
  if (comm->finalized) return Fail(kInvalidArgument, "the communicator is finalized already");
  comm->finalized = true;
  BeginGroup();
  const int code = Add(HostTask{comm, false, [comm] { return RunFinalize(*comm); }});
  const int ended = EndGroup();
  return code != kSuccess ? code : ended;
}

FAKE_EXPORT int ncclCommDestroy(ncclComm* comm) {
  if (comm == nullptr) return kSuccess;
  if (Gone(comm)) return kInvalidArgument;
  {
    const DeviceCall call(comm->device);
    const int state = StateOf(*comm);
    const bool refused =
        TheProfile().destroy_takes_failed ? state == kInProgress : state != kSuccess;
    if (refused || comm->destroyed) {
      // The early return leaves the thread's group open.
      if (TheProfile().failed_destroy_raises_depth) BeginGroup();
      return Fail(kInvalidArgument, "the communicator cannot be destroyed");
    }
    comm->destroyed = true;
  }
  return End(comm, RunDestroy);
}

FAKE_EXPORT int ncclCommAbort(ncclComm* comm) {
  if (comm == nullptr) return kSuccess;
  if (Gone(comm)) return kInvalidArgument;
  TheWitness().aborts.fetch_add(1);
  // Nobody waits for a thread inside a blocking communicator, even where it happens to leave.
  const bool waits = !comm->blocking && TheProfile().abort_joins_job;
  if (!waits) LookInside(*comm);
  // From here on its kernels end, and host threads inside leave; the rest may have to wait for
  // the end of an open group.
  comm->line->abort.store(true);
  return End(comm, RunAbort);
}

FAKE_EXPORT int ncclCommGetAsyncError(ncclComm* comm, int* state) {
  if (Gone(comm)) return kInvalidArgument;
  const Question question(*comm);
  *state = StateOf(*comm);
  // Without a lock, whoever else asks.
  if (TheProfile().question_joins_job && *state != kInProgress) JoinJob(*comm);
  return kSuccess;
}
