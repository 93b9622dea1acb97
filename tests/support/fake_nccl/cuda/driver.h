// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/fake_nccl/cuda/codes.h"

// The process's devices and contexts, and which context a thread works in.
namespace fake_cuda {

class Mark;
class Stream;

struct Context {
  int device = 0;
  std::atomic<int> sticky{0};       // a lost context: every call returns this
  std::atomic<int> submissions{0};  // to its streams
  // Guarded by the driver's mutex.
  std::shared_ptr<Stream> legacy;
  std::vector<std::shared_ptr<Mark>> orphans;  // the ends of destroyed streams
};

struct Driver {
  static constexpr int kMostDevices = 64;

  std::mutex mutex;
  std::atomic<bool> ready{false};
  std::atomic<int> freeing{0};  // threads inside a function that frees memory
  std::map<void*, std::shared_ptr<Stream>> streams;
  Context contexts[kMostDevices];
};

// Never destroyed: threads of streams may run on while the process exits.
Driver& TheDriver();

int DeviceCount();           // that the process sees
int PhysicalOf(int device);  // which of the machine's it is
// As nvidia-smi writes it.
std::string UuidOf(int physical);
std::vector<void*>& ContextStack();  // this thread's
// The context that this thread works in. An error code where a call could not go on.
int Enter(Context*& context);
Context& ContextOf(int device);

// A kernel of this context used memory that it must not use.
void Fault(Context& context);
// Counts a submission; from the one that FAKE_CUDA_STICKY names on, the context is lost.
void CountSubmission(Context& context);

}  // namespace fake_cuda
