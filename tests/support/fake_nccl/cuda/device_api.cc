// SPDX-License-Identifier: Apache-2.0
// The driver's functions for devices and contexts.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "tests/support/fake_nccl/cuda/driver.h"

namespace {

using namespace fake_cuda;

// Slices of one GPU, as the driver shows them.
bool Mig() { return getenv("FAKE_CUDA_MIG") != nullptr; }

bool Known(int device) {
  return device >= 0 && device < DeviceCount() && device < Driver::kMostDevices;
}

}  // namespace

FAKE_EXPORT int cuInit(unsigned) {
  const char* error = getenv("FAKE_CUDA_INIT_ERROR");
  if (error != nullptr && atoi(error) != 0) return atoi(error);
  if (DeviceCount() == 0) return kNoDevice;
  TheDriver().ready.store(true);
  return kOk;
}

FAKE_EXPORT int cuGetErrorString(int error, const char** text) {
  static const auto* const kTexts =
      new std::map<int, const char*>{{kInvalidValue, "invalid argument"},
                                     {kOutOfMemory, "out of memory"},
                                     {kNotInitialized, "initialization error"},
                                     {kNoDevice, "no CUDA-capable device is detected"},
                                     {kInvalidDevice, "invalid device ordinal"},
                                     {kInvalidContext, "invalid device context"},
                                     {kInvalidHandle, "invalid resource handle"},
                                     {kNotReady, "device not ready"},
                                     {kIllegalAddress, "an illegal memory access was encountered"}};
  const auto found = kTexts->find(error);
  *text = found == kTexts->end() ? "unknown error" : found->second;
  return kOk;
}

FAKE_EXPORT int cuDriverGetVersion(int* version) {
  *version = 12040;
  return kOk;
}

FAKE_EXPORT int cuDeviceGetCount(int* count) {
  if (!TheDriver().ready.load()) return kNotInitialized;
  *count = DeviceCount();
  return kOk;
}

FAKE_EXPORT int cuDeviceGet(int* device, int ordinal) {
  if (!Known(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kOk;
}

FAKE_EXPORT int cuDeviceGetName(char* name, int size, int device) {
  if (!Known(device)) return kInvalidDevice;
  snprintf(name, static_cast<size_t>(size), Mig() ? "Fake GPU MIG %d" : "Fake GPU %d",
           PhysicalOf(device));
  return kOk;
}

// Of a slice, the GPU's.
FAKE_EXPORT int cuDeviceGetUuid(unsigned char* uuid, int device) {
  if (!Known(device)) return kInvalidDevice;
  std::memset(uuid, 0x11 + (Mig() ? 0 : PhysicalOf(device)), 16);
  return kOk;
}

FAKE_EXPORT int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  if (!Known(device)) return kInvalidDevice;
  std::memset(uuid, (Mig() ? 0x91 : 0x11) + PhysicalOf(device), 16);
  return kOk;
}

FAKE_EXPORT int cuDeviceGetPCIBusId(char* text, int size, int device) {
  if (!Known(device)) return kInvalidDevice;
  snprintf(text, static_cast<size_t>(size), "0000:%02X:00.0",
           0x10 + (Mig() ? 0 : PhysicalOf(device)));
  return kOk;
}

FAKE_EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (!TheDriver().ready.load()) return kNotInitialized;
  if (!Known(device)) return kInvalidDevice;
  *context = &ContextOf(device);
  return kOk;
}

FAKE_EXPORT int cuDevicePrimaryCtxRelease_v2(int) { return kOk; }

FAKE_EXPORT int cuCtxGetCurrent(void** context) {
  *context = ContextStack().empty() ? nullptr : ContextStack().back();
  return kOk;
}

FAKE_EXPORT int cuCtxSetCurrent(void* context) {
  if (!ContextStack().empty()) ContextStack().pop_back();
  if (context != nullptr) ContextStack().push_back(context);
  return kOk;
}

FAKE_EXPORT int cuCtxGetDevice(int* device) {
  Context* context = nullptr;
  if (const int code = Enter(context); code != kOk && context == nullptr) return code;
  *device = context->device;
  return kOk;
}

FAKE_EXPORT int cuCtxPushCurrent_v2(void* context) {
  if (context == nullptr) return kInvalidContext;
  ContextStack().push_back(context);
  return kOk;
}

FAKE_EXPORT int cuCtxPopCurrent_v2(void** context) {
  if (ContextStack().empty()) return kInvalidContext;
  if (context != nullptr) *context = ContextStack().back();
  ContextStack().pop_back();
  return kOk;
}
