// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/base/collective.h"

namespace dtrain::runtime {

// The memory that one communicator has registered with NCCL. NCCL finds a collective's buffers in
// its own list of it, and then works in them itself: what one rank uses so, all must use alike, or
// some wait for ever. Any thread.
class Registrations {
 public:
  struct Entry {
    const char* begin = nullptr;
    size_t bytes = 0;
    uint64_t id = 0;         // the same on all ranks; never 0
    void* handle = nullptr;  // NCCL's
  };
  void Add(const Entry& entry);
  // That begins there.
  std::optional<Entry> Take(const void* begin);
  std::vector<Entry> TakeAll();

  // What rank `rank` of `size` uses of it in `what`.
  struct Use {
    bool any = false;
    // Of a kind that other ranks may use alike; else only copies of the buffers may come to NCCL.
    bool allowed = true;
    uint64_t key = 0;  // equal where the use is; 0: none
  };
  Use UseOf(const Collective& what, int rank, int size) const;

 private:
  struct Place {
    bool touches = false, inside = false;
    uint64_t id = 0;
    size_t offset = 0;
  };
  Place Find(const void* begin, size_t bytes) const;

  std::atomic<bool> some_{false};
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace dtrain::runtime
