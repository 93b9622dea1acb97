// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/remote_link.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/posix_error.h"
#include "common/os/credentials.h"
#include "common/os/fd.h"

namespace dtrain::spawn {

pid_t PidOf(int pidfd) {
  auto text = os::ReadSmallFile(absl::StrCat("/proc/self/fdinfo/", pidfd));
  if (!text.ok()) return 0;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    int pid = 0;
    if (absl::ConsumePrefix(&line, "Pid:") && absl::SimpleAtoi(line, &pid) && pid > 0) return pid;
  }
  return 0;
}

bool IsPipe(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && S_ISFIFO(info.st_mode);
}

bool HasNamedPeer(int socket) {
  sockaddr_un name{};
  socklen_t size = sizeof(name);
  return getpeername(socket, reinterpret_cast<sockaddr*>(&name), &size) == 0 &&
         size > sizeof(sa_family_t);
}

// The path may be too long for an address.
absl::StatusOr<os::UniqueFd> ConnectToLink(const std::string& link) {
  const size_t slash = link.rfind('/');
  const os::UniqueFd folder(
      open(link.substr(0, slash).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!folder) return PosixError(errno, absl::StrCat("open the folder of ", link));
  os::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return PosixError(errno, "make a socket");
  os::RefuseDescriptors(fd.get());
  const std::string path = absl::StrCat("/proc/self/fd/", folder.get(), link.substr(slash));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof(name.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat(link, " is too long for a unix socket"));
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    return PosixError(errno, absl::StrCat("connect to ", link));
  }
  auto peer = os::PeerOf(fd.get());
  if (!peer.ok()) return peer.status();
  if (peer->uid != 0) return absl::PermissionDeniedError("another process answers in its place");
  return fd;
}

}  // namespace dtrain::spawn
