// SPDX-License-Identifier: Apache-2.0
#include "common/os/process_sockets.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/unique_fd.h"

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

namespace dtrain::os {
namespace {

constexpr size_t kMostOfProcess = 1024;          // looked at
constexpr size_t kMostHeap = size_t{512} << 20;  // bytes, likewise
constexpr size_t kPiece = size_t{1} << 20;       // read at a time
constexpr size_t kLongestValue = 256;
constexpr size_t kAlignment = 16;  // of what malloc gives

// The port, if the address is this machine's own.
std::optional<uint16_t> LoopbackPort(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    if ((ntohl(v4.sin_addr.s_addr) >> 24) == 127) return ntohs(v4.sin_port);
  } else if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) && v6.sin6_addr.s6_addr[12] == 127;
    if (mapped || IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr)) return ntohs(v6.sin6_port);
  }
  return std::nullopt;
}

// Of one that is not connected, nor on its way to be, and does not listen.
std::optional<uint16_t> FailedConnect(int socket) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      info.tcpi_state != TCP_CLOSE) {
    return std::nullopt;
  }
  sockaddr_storage address{};
  size = sizeof(address);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return std::nullopt;
  const auto port = LoopbackPort(address);
  return port && *port != 0 ? port : std::nullopt;
}

// Calls `look` with a copy of each socket that the process has, until that says false. False: they
// cannot be seen.
bool EachSocket(pid_t pid, absl::FunctionRef<bool(int socket)> look) {
  const auto pidfd = OpenPidfd(pid);
  if (!pidfd.ok()) return true;  // it has ended
  const std::unique_ptr<DIR, int (*)(DIR*)> descriptors(
      opendir(absl::StrCat("/proc/", pid, "/fd").c_str()), closedir);
  size_t looked_at = 0;
  while (const dirent* entry = descriptors ? readdir(descriptors.get()) : nullptr) {
    int number = 0;
    char target[8];  // "socket:["
    if (!absl::SimpleAtoi(entry->d_name, &number)) continue;
    if (++looked_at > kMostOfProcess) break;
    if (readlinkat(dirfd(descriptors.get()), entry->d_name, target, sizeof(target)) !=
            sizeof(target) ||
        std::memcmp(target, "socket:[", sizeof(target)) != 0) {
      continue;
    }
    const UniqueFd socket(static_cast<int>(syscall(SYS_pidfd_getfd, pidfd->get(), number, 0)));
    if (!socket && errno != EBADF && errno != ESRCH) return false;
    if (socket && !look(socket.get())) break;
  }
  return true;
}

struct Range {
  uint64_t begin = 0, end = 0;
};
std::optional<Range> HeapOf(pid_t pid) {
  const auto maps = ReadSmallFile(absl::StrCat("/proc/", pid, "/maps"), 64 << 20);
  if (!maps.ok()) return std::nullopt;
  for (const absl::string_view line : absl::StrSplit(*maps, '\n')) {
    if (!absl::EndsWith(line, "[heap]")) continue;
    const std::vector<absl::string_view> ends =
        absl::StrSplit(line.substr(0, line.find(' ')), absl::MaxSplits('-', 1));
    Range range;
    if (ends.size() == 2 && absl::SimpleHexAtoi(ends[0], &range.begin) &&
        absl::SimpleHexAtoi(ends[1], &range.end) && range.begin < range.end) {
      return range;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<uint16_t> FailedLoopbackConnect(pid_t pid) {
  std::optional<uint16_t> port;
  (void)EachSocket(pid, [&](int socket) {
    port = FailedConnect(socket);
    return !port;
  });
  return port;
}

bool HasNetworkSocket(pid_t pid) {
  bool found = false;
  const bool seen = EachSocket(pid, [&](int socket) {
    int family = 0;
    socklen_t size = sizeof(family);
    found = getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 &&
            (family == AF_INET || family == AF_INET6);
    return !found;
  });
  return found || !seen;
}

// setenv keeps "NAME=value" in memory of malloc. Of several it is one of them.
std::optional<std::string> VariableSetByItself(pid_t pid, absl::string_view name) {
  const auto heap = HeapOf(pid);
  const UniqueFd memory(open(absl::StrCat("/proc/", pid, "/mem").c_str(), O_RDONLY | O_CLOEXEC));
  if (!heap || !memory) return std::nullopt;
  const std::string wanted = absl::StrCat(name, "=");
  const size_t overlap = wanted.size() + kLongestValue;
  std::optional<std::string> found;
  std::string piece(kPiece + overlap, '\0');
  const uint64_t end = std::min(heap->end, heap->begin + kMostHeap);
  for (uint64_t at = heap->begin; at < end; at += kPiece) {
    const ssize_t n = pread(memory.get(), piece.data(), std::min<uint64_t>(piece.size(), end - at),
                            static_cast<off_t>(at));
    if (n <= 0) continue;
    const absl::string_view text(piece.data(), static_cast<size_t>(n));
    // kPiece is less than npos.
    for (size_t hit = text.find(wanted); hit < kPiece; hit = text.find(wanted, hit + 1)) {
      if ((at + hit) % kAlignment != 0) continue;  // a text that speaks of it
      const absl::string_view value = text.substr(hit + wanted.size(), kLongestValue);
      const size_t length = value.find('\0');
      if (length != absl::string_view::npos) found = std::string(value.substr(0, length));
    }
  }
  return found;
}

}  // namespace dtrain::os
