// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/os/unique_fd.h"

// Small things done with descriptors. All of them are opened close-on-exec.

namespace dtrain::os {

// A connected pair of unix stream sockets.
absl::StatusOr<std::pair<UniqueFd, UniqueFd>> SocketPair();
// Of a unix socket on which nobody is to send us descriptors: the kernel refuses them (EPERM), also
// to who connects to it if it listens. We would close them, which lasts as long as their sender
// likes (SO_LINGER). Before Linux 6.16 nothing happens.
void RefuseDescriptors(int socket);
// {read end, write end}
absl::StatusOr<std::pair<UniqueFd, UniqueFd>> Pipe();
absl::Status SetNonBlocking(int fd, bool on);
// Of a file that was written: a network file system may tell only now what it could not keep, for
// want of quota for example. `what` as for PosixError.
absl::Status CloseWritten(UniqueFd fd, absl::string_view what);

// A whole small file (procfs, sysfs, configuration). Fails when it has more than `limit` bytes.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t limit = 1 << 20);
// The same of one that is open; `path` is for the error.
absl::StatusOr<std::string> ReadToEnd(int fd, absl::string_view path, size_t limit);

// Whether something has this path, links followed. That nobody can tell (a file server that answers
// with errors) is an error, and not a no.
absl::StatusOr<bool> Exists(const std::string& path);

// Random bytes from the kernel, for tokens and ids.
std::string RandomBytes(size_t n);
// `n` random bytes as 2n lower-case hex digits.
std::string RandomHex(size_t n);

inline constexpr unsigned kEveryDescriptor = ~0U;

// Closes the descriptors `first` to `last` of this process, both included. On kernels without
// close_range (before Linux 5.9) it closes what /proc/self/fd lists, or without /proc everything up
// to RLIMIT_NOFILE. Allocates nothing and takes no locks: a child may call it between its fork, or
// vfork, and its exec.
void CloseRange(unsigned first, unsigned last);

}  // namespace dtrain::os
