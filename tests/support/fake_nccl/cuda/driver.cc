// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_nccl/cuda/driver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/support/fake_nccl/cuda/fake_cuda.h"
#include "tests/support/fake_nccl/per_thread.h"

// A page that a kernel spoils when it writes where it must not; tests look at it.
FAKE_EXPORT unsigned char fake_cuda_canary[4096];
unsigned char fake_cuda_canary[4096] = {};
FAKE_EXPORT int fake_cuda_faults;
int fake_cuda_faults = 0;

namespace fake_cuda {

Driver& TheDriver() {
  static Driver* const driver = [] {
    auto* made = new Driver;
    for (int d = 0; d < Driver::kMostDevices; ++d) made->contexts[d].device = d;
    return made;
  }();
  return *driver;
}

int DeviceCount() {
  const char* text = getenv("FAKE_CUDA_DEVICES");
  return text == nullptr ? 8 : atoi(text);
}

std::vector<void*>& ContextStack() {
  static const auto* const stacks = new fake_nccl::PerThread<std::vector<void*>>;
  return stacks->Get();
}

int Enter(Context*& context) {
  if (!TheDriver().ready.load()) return kNotInitialized;
  const auto& stack = ContextStack();
  if (stack.empty() || stack.back() == nullptr) return kInvalidContext;
  context = static_cast<Context*>(stack.back());
  return context->sticky.load();
}

Context& ContextOf(int device) { return TheDriver().contexts[device]; }

void Fault(Context& context) {
  {
    const std::lock_guard lock(TheDriver().mutex);
    std::memset(fake_cuda_canary, 0xdb, sizeof(fake_cuda_canary));
    __atomic_add_fetch(&fake_cuda_faults, 1, __ATOMIC_SEQ_CST);
  }
  context.sticky.store(kIllegalAddress);
}

void CountSubmission(Context& context) {
  const int number = context.submissions.fetch_add(1);
  const char* text = getenv("FAKE_CUDA_STICKY");
  int code = 0, from = 0, device = -1;
  if (text == nullptr || sscanf(text, "%d:%d:%d", &code, &from, &device) < 2) return;
  if (number >= from && (device < 0 || device == context.device)) context.sticky.store(code);
}

}  // namespace fake_cuda

FAKE_EXPORT void fake_cuda_fault(int device) { fake_cuda::Fault(fake_cuda::ContextOf(device)); }

FAKE_EXPORT int fake_cuda_lost(int device) { return fake_cuda::ContextOf(device).sticky.load(); }
