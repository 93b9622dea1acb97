// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/held_ports.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/inventory/wildcard_socket.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"

namespace dtrain::inventory {

// What Linux does (inet_csk_get_port, seen on 6.18): with a chosen port number, two sockets may
// share it when both have SO_REUSEADDR and neither listens yet, or when both have SO_REUSEPORT and
// belong to one user; the first test alone suffices. So a holder with both options, which never
// listens, lets in servers with either option, also a TCPStore that has SO_REUSEADDR only. With
// port number 0, and for the local port of an outgoing connection, any bound port counts as taken,
// whatever its options: nobody is given a held one by chance. A reuse group for SO_REUSEPORT forms
// among listeners only, so the holder never takes a connection away from the worker.
absl::StatusOr<HeldPorts> HeldPorts::Hold(uint32_t count, uint32_t listening) {
  constexpr uint32_t kMaxPorts = 1024;  // one descriptor each
  if (count > kMaxPorts) {
    return absl::InvalidArgumentError(
        absl::StrCat("hold ", count, " ports: the limit is ", kMaxPorts));
  }
  HeldPorts held;
  held.listening_ = std::min(listening, count);
  for (uint32_t i = 0; i < count; ++i) {
    absl::StatusOr<BoundSocket> socket = BindWildcard(/*reuse=*/true);
    if (!socket.ok()) {
      return absl::Status(socket.status().code(),
                          absl::StrCat("hold ", Count(count, "port"),
                                       " for the workers: ", socket.status().message()));
    }
    if (i + listening >= count && listen(socket->fd.get(), SOMAXCONN) != 0) {
      return PosixError(errno, "listen on a port for the workers");
    }
    held.ports_.push_back(socket->port);
    held.sockets_.push_back(std::move(socket->fd));
  }
  return held;
}

int HeldPorts::SocketOf(uint32_t port) const {
  for (size_t i = 0; i < ports_.size(); ++i) {
    if (ports_[i] == port) return sockets_[i].get();
  }
  return -1;
}

}  // namespace dtrain::inventory
