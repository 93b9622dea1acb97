// SPDX-License-Identifier: Apache-2.0
#include "runtime/shm/peer_memory.h"

#include <sys/uio.h>

#include <cerrno>
#include <cstring>

namespace dtrain::runtime {

char* PeerMemory::Direct(int index, int64_t offset) const {
  if (offset == Descriptor::kElsewhere || arenas_.empty()) return nullptr;
  char* base = arenas_[static_cast<size_t>(index)].data();
  return base == nullptr ? nullptr : base + offset;
}

MaybeError PeerMemory::Read(int index, void* to, uint64_t address, size_t bytes) const {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    iovec mine{at, bytes};
    iovec theirs{reinterpret_cast<void*>(address), bytes};
    const ssize_t n = process_vm_readv(group_.member(index).pid, &mine, 1, &theirs, 1, 0);
    if (n <= 0) {
      const std::string who = "rank " + std::to_string(group_.member(index).rank);
      if (n < 0 && errno == ESRCH) {
        return Error{DTRAIN_ERROR_NETWORK,
                     "lost the connection to " + who + ": its process has ended"};
      }
      return Error{DTRAIN_ERROR_INVALID_ARGUMENT,
                   "cannot read the buffer of " + who + ": " +
                       (n < 0 ? std::strerror(errno) : "it ends too early")};
    }
    at += n;
    address += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return std::nullopt;
}

}  // namespace dtrain::runtime
