// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "dtrain/dtrain.h"
#include "runtime/allreduce/options.h"

namespace dtrain::allreduce {

// False after a failed call, which is then reported on stderr.
bool Ok(dtrain_status status);

// Memory of the kind that was asked for, and a way to fill and read it that works for all of them:
// memory of a GPU is copied by libdtrain itself, as an all-reduce in a group of this rank alone, so
// that this program needs no CUDA.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  // `memory` is not kAuto. False when there is no memory, reported.
  bool Make(size_t bytes, Memory memory, dtrain_group alone);
  void* data() const { return data_; }
  // The contents as host memory: itself, or a copy for changes that Put then carries over.
  void* Get(size_t bytes);
  bool Put(size_t bytes);

 private:
  bool Copy(const void* from, void* to, size_t bytes) const;

  void* data_ = nullptr;
  Memory memory_ = Memory::kPlain;
  dtrain_group alone_ = nullptr;
  std::vector<char> plain_;
  std::vector<char> host_;  // of device memory
};

}  // namespace dtrain::allreduce
