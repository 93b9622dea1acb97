// SPDX-License-Identifier: Apache-2.0
#include "common/os/fd.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/posix_error.h"

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

}  // namespace dtrain::os
