// SPDX-License-Identifier: Apache-2.0
#include "common/os/fd.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/posix_error.h"
#include "common/os/spawn_child.h"

namespace dtrain::os {

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> SocketPair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    return PosixError(errno, "create a socket pair");
  }
  return std::make_pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

void RefuseDescriptors(int socket) {
#ifdef SO_PASSRIGHTS
  constexpr int kPassRights = SO_PASSRIGHTS;
#else
  constexpr int kPassRights = 83;  // in asm-generic/socket.h
#endif
  const int off = 0;
  (void)setsockopt(socket, SOL_SOCKET, kPassRights, &off, sizeof(off));
}

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> Pipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return PosixError(errno, "create a pipe");
  return std::make_pair(UniqueFd(fds[0]), UniqueFd(fds[1]));
}

absl::Status SetNonBlocking(int fd, bool on) {
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return PosixError(errno, "read descriptor flags");
  int wanted = on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
  if (wanted != flags && fcntl(fd, F_SETFL, wanted) < 0) {
    return PosixError(errno, "set descriptor flags");
  }
  return absl::OkStatus();
}

absl::Status CloseWritten(UniqueFd fd, absl::string_view what) {
  // Closed it is in any case. An interrupted close has told of nothing.
  if (close(fd.Release()) != 0 && errno != EINTR) return PosixError(errno, what);
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t limit) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return PosixError(errno, absl::StrCat("open ", path));
  return ReadToEnd(fd.get(), path, limit);
}

absl::StatusOr<std::string> ReadToEnd(int fd, absl::string_view path, size_t limit) {
  std::string out;
  char buffer[16384];
  for (;;) {
    ssize_t n = read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return PosixError(errno, absl::StrCat("read ", path));
    if (n == 0) return out;
    if (out.size() + static_cast<size_t>(n) > limit) {
      return absl::ResourceExhaustedError(absl::StrCat(path, " has more than ", limit, " bytes"));
    }
    out.append(buffer, static_cast<size_t>(n));
  }
}

absl::StatusOr<bool> Exists(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  return PosixError(errno, absl::StrCat("look at ", path));
}

std::string RandomBytes(size_t n) {
  std::string out(n, '\0');
  size_t done = 0;
  while (done < n) {
    ssize_t got = getrandom(out.data() + done, n - done, 0);
    // Only EINTR can happen: the pool is initialised long before any program of ours starts.
    DTRAIN_CHECK(got >= 0 || errno == EINTR);
    if (got > 0) done += static_cast<size_t>(got);
  }
  return out;
}

std::string RandomHex(size_t n) { return absl::BytesToHexString(RandomBytes(n)); }

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
