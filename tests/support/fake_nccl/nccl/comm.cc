// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl/nccl/comm.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "tests/support/fake_nccl/nccl/job.h"

namespace fake_nccl {
namespace {

std::mutex& TextMutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
char last_error[1024] = "";

bool Gone(ncclComm& comm) {
  if (!comm.gone.load()) return false;
  TheWitness().after_end.fetch_add(1);
  return true;
}

}  // namespace

int Fail(int code, const char* text) {
  const std::lock_guard lock(TextMutex());
  snprintf(last_error, sizeof(last_error), "%s", text);
  return code;
}

CommCall::CommCall(ncclComm* comm) : comm_(comm), device_(comm->device) {
  comm_->word = comm_->word + 1;
  TheWitness().calls.fetch_add(1);
  comm_->inside.fetch_add(1);
  pid_t nobody = 0;
  if (!comm_->user.compare_exchange_strong(nobody, gettid()) && nobody != gettid()) {
    TheWitness().overlaps.fetch_add(1);
  }
}

CommCall::~CommCall() {
  pid_t me = gettid();
  comm_->user.compare_exchange_strong(me, 0);
  comm_->inside.fetch_sub(1);
  comm_->word = comm_->word + 1;
}

CommContext::CommContext(int device) {
  void* context = nullptr;
  cuDevicePrimaryCtxRetain(&context, device);
  cuCtxPushCurrent_v2(context);
}

CommContext::~CommContext() {
  void* context = nullptr;
  cuCtxPopCurrent_v2(&context);
}

int StateOf(ncclComm& comm) {
  const int state = comm.state.load();
  if (state != kSuccess || !TheProfile().proxy_errors) return state;
  return comm.line->proxy_error.load();
}

int CheckReady(ncclComm& comm) {
  if (Gone(comm)) return kInvalidArgument;
  const int state = StateOf(comm);
  if (state == kInProgress) {
    return Fail(kInvalidArgument,
                "Attempt to use communicator before the previous operation returned ncclSuccess");
  }
  if (state == kSuccess && TheProfile().call_joins_job) JoinJob(comm);
  return state;
}

bool Stopped(ncclComm& comm) { return Gone(comm) || comm.line->abort.load(); }

// A communicator that blocks never has one.
void JoinJob(ncclComm& comm) {
  if (comm.blocking) return;
  Job* const job = std::exchange(comm.job, nullptr);
  if (job == nullptr) return;
  if (job->joining.fetch_add(1) > 0) TheWitness().joined_twice.fetch_add(1);
  job->Join();
  job->Drop();
}

void LookInside(ncclComm& comm) {
  if (comm.inside.load() > 0 && !comm.ended_inside.exchange(true)) {
    TheWitness().ended_inside.fetch_add(1);
  }
}

void Free(ncclComm* comm) {
  comm->gone.store(true);
  for (const auto& registration : comm->registrations) registration->gone.store(true);
  LookInside(*comm);
#ifdef __SANITIZE_ADDRESS__
  delete comm;
#endif
}

void Hang() {
  for (;;) pause();
}

}  // namespace fake_nccl

FAKE_EXPORT const char* ncclGetLastError(ncclComm*) { return fake_nccl::last_error; }

FAKE_EXPORT const char* ncclGetErrorString(int code) {
  static const char* const kLong[] = {
      "no error",
      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
      "internal error - please report this issue to the NCCL developers",
      "invalid argument (run with NCCL_DEBUG=WARN for details)",
      "invalid usage (run with NCCL_DEBUG=WARN for details)",
      "remote process exited or there was a network error",
      "NCCL operation in progress"};
  static const char* const kShort[] = {"no error",
                                       "unhandled cuda error",
                                       "unhandled system error",
                                       "internal error",
                                       "invalid argument",
                                       "invalid usage",
                                       "remote process exited or there was a network error",
                                       "NCCL operation in progress"};
  if (code == 8 && fake_nccl::TheProfile().version >= 23003) return "NCCL operation timed out";
  if (code < 0 || code > 7) return "unknown result code";
  return fake_nccl::TheProfile().long_texts ? kLong[code] : kShort[code];
}
