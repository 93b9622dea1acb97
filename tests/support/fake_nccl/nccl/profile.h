// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

// What differs between NCCL's versions. FAKE_NCCL_VERSION counts here, too; only the symbols are
// those of the file.
namespace fake_nccl {

enum class SameGpu { kBusId, kBusIdFirstRankOnly, kUuid };

struct Profile {
  int version = 0;                  // 22809 is 2.28.9
  bool forced_both_ways = false;    // NCCL_COMM_BLOCKING=0 counts, not only =1
  bool lazy_connect = false;        // the first use of each kind connects
  bool connects_in_call = false;    // also in a call of a non-blocking communicator
  bool thread_per_launch = false;   // of a non-blocking communicator
  bool job_in_thread = false;       // lies in the thread that began it
  bool one_job_per_thread = false;  // a second call of that thread is refused
  bool call_joins_job = false;      // every call joins the communicator's finished job
  bool question_joins_job = false;  // so does ncclCommGetAsyncError, without a lock
  bool proxy_errors = false;        // reach ncclCommGetAsyncError
  bool abort_joins_job = false;
  bool abort_hangs = false;
  bool ends_are_grouped = false;  // destroy and abort queue inside an open group
  bool failed_destroy_raises_depth = false;
  bool destroy_takes_failed = false;   // refuses only what is in progress
  bool no_handle_deregisters = false;  // ncclCommDeregister of NULL is no mistake
  bool long_texts = false;
  bool shared_gpu_allowed = false;  // with NCCL_MULTI_RANK_GPU_ENABLE=1
  SameGpu same_gpu = SameGpu::kBusId;
  std::chrono::milliseconds patience{0};  // with a connection that is refused
};

const Profile& TheProfile();

}  // namespace fake_nccl
