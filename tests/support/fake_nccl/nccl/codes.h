// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace fake_nccl {

enum Result {
  kSuccess = 0,
  kCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
  kTimeout = 8
};

// Remembers the text for ncclGetLastError, which is one for the whole process, and returns `code`.
int Fail(int code, const char* text);

}  // namespace fake_nccl

extern "C" {
int cuCtxGetDevice(int* device);
int cuCtxPushCurrent_v2(void* context);
int cuCtxPopCurrent_v2(void** context);
int cuCtxGetCurrent(void** context);
int cuDeviceGetUuid(unsigned char* uuid, int device);
int cuDeviceGetPCIBusId(char* text, int size, int device);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuEventCreate(void** event, unsigned flags);
int cuEventDestroy_v2(void* event);
int cuEventRecord(void* event, void* stream);
int cuStreamWaitEvent(void* stream, void* event, unsigned flags);
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes,
                         void* stream);
}
