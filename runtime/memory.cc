// SPDX-License-Identifier: Apache-2.0
// The C functions about memory.
#include <cstdint>
#include <string>

#include "dtrain/dtrain.h"
#include "runtime/arguments.h"
#include "runtime/process.h"

using namespace dtrain::runtime;  // NOLINT(google-build-using-namespace): the C functions' own home

namespace {

dtrain_status Allocate(const char* name, size_t bytes, Job::Memory kind, void** memory) {
  return Call(name, [&](Process& process) -> MaybeError {
    if (memory == nullptr) return Error{DTRAIN_ERROR_INVALID_ARGUMENT, "memory is NULL"};
    *memory = nullptr;
    if (MaybeError error = RequireJoined(process)) return error;
    if (bytes > SIZE_MAX / 2) {
      return Error{DTRAIN_ERROR_INVALID_ARGUMENT,
                   std::to_string(bytes) + " bytes do not fit in memory"};
    }
    auto made = process.job->Allocate(bytes, kind);
    if (!made.ok()) return made.error();
    *memory = *made;
    return std::nullopt;
  });
}

}  // namespace

extern "C" {

dtrain_status dtrain_alloc(size_t bytes, void** memory) {
  return Allocate("dtrain_alloc", bytes, Job::Memory::kShared, memory);
}
dtrain_status dtrain_alloc_device(size_t bytes, void** memory) {
  return Allocate("dtrain_alloc_device", bytes, Job::Memory::kDevice, memory);
}
dtrain_status dtrain_alloc_registrable(size_t bytes, void** memory) {
  return Allocate("dtrain_alloc_registrable", bytes, Job::Memory::kRegistrable, memory);
}
dtrain_status dtrain_free(void* memory) {
  return Call("dtrain_free", [&](Process& process) -> MaybeError {
    if (memory == nullptr) return std::nullopt;
    if (MaybeError error = RequireJoined(process)) return error;
    return process.job->Free(memory);
  });
}

dtrain_status dtrain_register(void* memory, dtrain_group group, int* registered) {
  return Call("dtrain_register", [&](Process& process) -> MaybeError {
    if (registered != nullptr) *registered = 0;
    if (MaybeError error = RequireJoined(process)) return error;
    auto done = process.job->Register(memory, IdOf(group));
    if (!done.ok()) return done.error();
    if (registered != nullptr) *registered = *done ? 1 : 0;
    return std::nullopt;
  });
}
dtrain_status dtrain_deregister(void* memory, dtrain_group group) {
  return Call("dtrain_deregister", [&](Process& process) -> MaybeError {
    if (MaybeError error = RequireJoined(process)) return error;
    return process.job->Deregister(memory, IdOf(group));
  });
}

}  // extern "C"
