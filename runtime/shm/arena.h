// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "runtime/base/result.h"
#include "runtime/shm/memory.h"

namespace dtrain::runtime {

// The memory that dtrain_alloc hands out: one large, mostly untouched shared mapping per process,
// which the other ranks of the node map too, so that they read and write buffers in it without a
// copy through the kernel. Alloc and Free by one thread at a time; Find by any.
class Arena {
 public:
  static constexpr size_t kBytes = size_t{64} << 30;

  static Result<std::unique_ptr<Arena>> Make(size_t bytes = kBytes);

  // Zeroed, aligned to 4096 (large ones to 2 MiB, for huge pages); nullptr when there is no room.
  void* Alloc(size_t bytes);
  // False when `memory` did not come from Alloc or is free already.
  bool Free(void* memory);

  // Where [address, address + bytes) lies in the arena; nullopt when it does not.
  std::optional<size_t> Find(const void* address, size_t bytes) const;

  // A number by which another process can tell that what it opened is this arena.
  uint64_t cookie() const;
  static uint64_t CookieOf(const SharedMemory& arena);
  int fd() const { return memory_.fd(); }
  size_t size() const { return memory_.size(); }

 private:
  explicit Arena(SharedMemory memory);

  SharedMemory memory_;
  std::map<size_t, size_t> free_;  // offset -> bytes; neighbours are merged
  std::map<size_t, size_t> used_;
};

}  // namespace dtrain::runtime
