// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>
#include <cstddef>

// The parts of NCCL's and of the CUDA driver's binary interface that we call, in our own words:
// the libraries are opened at run time, and no header of theirs is needed to build. The numbers
// have been the same in every release that has the function.
namespace dtrain::runtime::abi {

// ---- NCCL 2 ----

constexpr int kNcclSuccess = 0;
constexpr int kNcclRemoteError = 6;
constexpr int kNcclInProgress = 7;

struct NcclUniqueId {
  char internal[128];
};
static_assert(sizeof(NcclUniqueId) == 128);

struct NcclComm;

// ncclConfig_t as of 2.14. A newer library takes `size` bytes and, going by `version`, gives all
// later fields their defaults, the padding's place included.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21403;
  int blocking = 1;
  int unset = INT_MIN;
};
static_assert(sizeof(NcclConfig) == 24);

constexpr int kNcclInt8 = 0;
constexpr int kNcclInt32 = 2;
constexpr int kNcclInt64 = 4;
constexpr int kNcclFloat16 = 6;
constexpr int kNcclFloat32 = 7;
constexpr int kNcclFloat64 = 8;
constexpr int kNcclBfloat16 = 9;

constexpr int kNcclSum = 0;
constexpr int kNcclProd = 1;
constexpr int kNcclMax = 2;
constexpr int kNcclMin = 3;
constexpr int kNcclAvg = 4;

// ---- CUDA driver ----

constexpr int kCudaSuccess = 0;
constexpr int kCudaInvalidValue = 1;
constexpr int kCudaDeinitialized = 4;  // the driver is shutting down with the process
constexpr int kCudaNotReady = 600;

using CuDevice = int;
using CuDevicePointer = unsigned long long;
struct CuContextState;
struct CuStreamState;
struct CuEventState;
using CuContext = CuContextState*;
using CuStream = CuStreamState*;  // also what the runtime calls cudaStream_t
using CuEvent = CuEventState*;

struct CuUuid {
  unsigned char bytes[16];
};

constexpr unsigned kCuStreamNonBlocking = 1;
constexpr unsigned kCuEventDisableTiming = 2;
constexpr unsigned kCuHostPortable = 1;
constexpr int kCuPointerMemoryType = 2;
constexpr int kCuPointerIsManaged = 8;
constexpr int kCuPointerDeviceOrdinal = 9;
constexpr unsigned kCuMemoryHost = 1;
constexpr unsigned kCuMemoryDevice = 2;
constexpr int kCuCaptureRelaxed = 2;
constexpr int kCuCaptureNone = 0;  // of cuStreamIsCapturing

}  // namespace dtrain::runtime::abi
