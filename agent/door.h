// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"

namespace dtrain::agent {

// A listening socket whose connections are handed over. When descriptors run out it tries again.
// Loop thread.
class Door {
 public:
  using OnConnection = absl::AnyInvocable<void(os::UniqueFd socket, const sockaddr_storage& peer)>;
  Door(loop::Loop& loop, os::UniqueFd listening, OnConnection on_connection);

 private:
  void Await();
  void Accept();

  os::UniqueFd listening_;
  loop::FdWatch watch_;
  loop::Timer pause_;
  OnConnection on_connection_;
};

// "0.0.0.0:9797", "[::]:9797". InvalidArgument when it is neither.
absl::StatusOr<os::UniqueFd> ListenTcp(const std::string& where);

// "10.0.0.1"
std::string AddressText(const sockaddr_storage& peer);
// Where a TCP socket is bound: "10.0.0.1:9797", "[::]:9797".
std::string BoundTo(int socket);

}  // namespace dtrain::agent
