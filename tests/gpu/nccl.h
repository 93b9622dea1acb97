// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>
#include <cstddef>
#include <string>

#include "tests/gpu/cuda.h"
#include "tests/gpu/result.h"

namespace dtrain::gpu_check {

struct NcclId {
  char bytes[128];
};

// ncclConfig_t as of 2.14; a later library knows it by its size and version.
struct NcclSettings {
  size_t size = sizeof(NcclSettings);
  unsigned magic = 0xcafebeef;
  unsigned version = 21403;
  int blocking = 1;
  int unset = INT_MIN;
};

constexpr int kNcclFloat = 7;
constexpr int kNcclSumOp = 0;

// libnccl.so.2, or DTRAIN_NCCL_LIBRARY: what raw NCCL does, for comparison.
struct Nccl {
  int (*GetVersion)(int*);
  int (*GetUniqueId)(NcclId*);
  int (*InitRank)(Handle*, int, NcclId, int, NcclSettings*);
  int (*AllReduce)(const void*, void*, size_t, int, int, Handle, Handle);
  int (*Destroy)(Handle);
  int (*Abort)(Handle);
  const char* (*ErrorString)(int);

  // Prints "could not run" and ends the process when there is none.
  static const Nccl& Open(Result& result);
  int Version() const;
};

// One communicator of all ranks of this job, on the current context. The unique id goes through
// `file`, a name that all ranks see and that nobody has used before; "" for one rank.
class RawComm {
 public:
  RawComm(Result& result, const std::string& file, int rank, int ranks);

  int error() const { return error_; }
  std::string ErrorText() const;
  double init_seconds() const { return init_seconds_; }
  // A failed call misses the check and ends the process.
  void AllReduce(Pointer input, Pointer output, size_t count, Handle stream) const;
  void Destroy();

 private:
  Result& result_;
  const Nccl& nccl_;
  Handle comm_ = nullptr;
  int error_ = 0;
  double init_seconds_ = 0;
};

}  // namespace dtrain::gpu_check
