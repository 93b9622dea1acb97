// SPDX-License-Identifier: Apache-2.0
#include "common/os/close_range.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "common/os/spawn_child.h"

namespace dtrain::os {
namespace {

// As getdents64 returns it; glibc has no type for it before 2.30.
struct Entry {
  uint64_t inode;
  int64_t next;
  uint16_t length;
  uint8_t type;
  char name[1];
};

// The number that a name consists of; -1: it is "." or "..".
DTRAIN_CHILD_CODE int64_t Number(const char* name) {
  if (*name == '\0') return -1;
  int64_t number = 0;
  for (; *name != '\0'; ++name) {
    if (*name < '0' || *name > '9') return -1;
    number = number * 10 + (*name - '0');
  }
  return number;
}

// False: this process's descriptors cannot be listed.
DTRAIN_CHILD_CODE bool CloseListed(unsigned first, unsigned last) {
  const long directory =
      syscall(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return false;
  alignas(Entry) char buffer[2048];
  long size;
  // The kernel continues after the last number it returned, so closing earlier ones skips none.
  while ((size = syscall(SYS_getdents64, directory, buffer, sizeof(buffer))) > 0) {
    for (long at = 0; at < size;) {
      const auto* entry = reinterpret_cast<const Entry*>(buffer + at);
      const int64_t fd = Number(entry->name);
      if (fd >= first && fd <= last && fd != directory) syscall(SYS_close, fd);
      at += entry->length;
    }
  }
  syscall(SYS_close, directory);
  return size == 0;
}

}  // namespace

DTRAIN_CHILD_CODE void CloseRange(unsigned first, unsigned last) {
  if (syscall(SYS_close_range, first, last, 0) == 0 || CloseListed(first, last)) return;
  rlimit limit = {};
  syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit);
  // The hard limit: descriptors may have been opened before the soft one was lowered.
  const uint64_t end = std::min<uint64_t>(limit.rlim_max, uint64_t{last} + 1);
  for (uint64_t fd = first; fd < end; ++fd) syscall(SYS_close, fd);
}

}  // namespace dtrain::os
