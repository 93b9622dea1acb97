// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/loop/byte_pump.h"
#include "common/loop/loop.h"
#include "common/loop/stray_descriptors.h"
#include "common/os/unique_fd.h"
#include "common/rpc/frame_guard.h"

namespace dtrain::rpc {

// A client on a unix socket whose bytes a FrameGuard reads before gRPC does; over TLS its stream
// has one. Loop thread.
class GuardedStream {
 public:
  struct Made;
  // `on_end` is called once: OK when either side has closed, RESOURCE_EXHAUSTED or DATA_LOSS with
  // what the client did, another error when the socket broke. This may not be destroyed inside.
  static absl::StatusOr<Made> Make(loop::Loop& loop, loop::StrangersSocket client, FrameGuard guard,
                                   absl::AnyInvocable<void(absl::Status)> on_end);
  GuardedStream(const GuardedStream&) = delete;
  GuardedStream& operator=(const GuardedStream&) = delete;

 private:
  // One socket, of which each pump watches a descriptor of its own.
  struct Socket {
    loop::StrangersSocket in;
    os::UniqueFd out;
  };
  static absl::StatusOr<Socket> Twice(loop::StrangersSocket socket);
  GuardedStream(loop::Loop& loop, Socket client, Socket plain, FrameGuard guard,
                absl::AnyInvocable<void(absl::Status)> on_end);
  void End(absl::Status why);

  const Socket client_;
  const Socket plain_;
  absl::AnyInvocable<void(absl::Status)> on_end_;
  loop::BytePump in_;
  loop::BytePump out_;
};

struct GuardedStream::Made {
  std::unique_ptr<GuardedStream> guard;
  os::UniqueFd stream;  // for gRPC
};

}  // namespace dtrain::rpc
