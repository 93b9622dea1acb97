// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "runtime/base/result.h"

namespace dtrain::runtime {

// Anonymous memory (a memfd) that other processes of this node can map: it has no name anywhere,
// and is gone with the last process that uses it, however that one ends. Pages come into being when
// they are touched.
class SharedMemory {
 public:
  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  // `purpose` names it in /proc/<pid>/maps.
  static Result<SharedMemory> Create(const char* purpose, size_t bytes);
  // Maps what the process `pid` of this node has open as its descriptor `fd`.
  static Result<SharedMemory> Open(pid_t pid, int fd, size_t bytes);

  char* data() const { return data_; }
  size_t size() const { return size_; }
  // For Open by other processes; -1 once closed, which the mapping survives.
  int fd() const { return fd_; }
  void CloseFd();
  // The pages of this range are zero again and take no memory.
  void Discard(size_t offset, size_t bytes);

 private:
  MaybeError Map(size_t bytes);

  char* data_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;
};

}  // namespace dtrain::runtime
