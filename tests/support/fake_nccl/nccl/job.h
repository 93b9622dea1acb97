// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

struct ncclComm;

namespace fake_nccl {

// What a non-blocking communicator does in the background. In old versions it belongs to the thread
// that began it and goes with that thread.
class Job {
 public:
  Job();
  void Start(std::function<void()> work);
  void Join();
  // Frees it, as NCCL does: with ASan even where the job's thread still writes to it.
  void Drop();

  uint64_t number = 0;  // no other one's
  std::atomic<bool> done{false};
  std::atomic<int> joining{0};
};

// Begins it for these communicators. kInProgress, or why not.
int BeginJob(const std::vector<ncclComm*>& comms, std::function<void()> work);

}  // namespace fake_nccl
