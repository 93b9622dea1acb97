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

// What CUDA_VISIBLE_DEVICES leaves, by number or UUID, up to the first that is not there. Later
// changes of the variable have no effect.
static const std::vector<int>& Visible() {
  static const auto* const visible = [] {
    auto* all = new std::vector<int>;
    const char* text = getenv("FAKE_CUDA_DEVICES");
    const int count = text == nullptr ? 8 : atoi(text);
    const char* wanted = getenv("CUDA_VISIBLE_DEVICES");
    std::string list = wanted == nullptr ? "" : wanted;
    for (int d = 0; d < count && wanted == nullptr; ++d) all->push_back(d);
    while (!list.empty()) {
      const std::string one = list.substr(0, list.find(','));
      int found = -1;
      for (int d = 0; d < count; ++d) {
        const bool named = one.size() > 4 && UuidOf(d).compare(0, one.size(), one) == 0;
        if (found < 0 && (named || one == std::to_string(d))) found = d;
      }
      if (found < 0) break;
      all->push_back(found);
      list.erase(0, one.size() + 1);
    }
    return all;
  }();
  return *visible;
}

int DeviceCount() { return static_cast<int>(Visible().size()); }

int PhysicalOf(int device) { return Visible()[static_cast<size_t>(device)]; }

std::string UuidOf(int physical) {
  char byte[3];
  snprintf(byte, sizeof(byte), "%02x", 0x11 + physical);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    text += i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
    text += byte;
  }
  return text;
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
