// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/guarded_stream.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "common/base/posix_error.h"
#include "common/os/fd.h"

namespace dtrain::rpc {

absl::StatusOr<GuardedStream::Socket> GuardedStream::Twice(loop::StrangersSocket socket) {
  Socket out;
  out.out.Reset(fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
  if (!out.out) return PosixError(errno, "watch a client on the unix socket");
  out.in = std::move(socket);
  return out;
}

absl::StatusOr<GuardedStream::Made> GuardedStream::Make(
    loop::Loop& loop, loop::StrangersSocket client, FrameGuard guard,
    absl::AnyInvocable<void(absl::Status)> on_end) {
  auto pair = os::SocketPair();
  if (!pair.ok()) return pair.status();
  auto ours = Twice(std::move(client));
  auto plain = Twice(loop::StrangersSocket(std::move(pair->first)));
  if (!ours.ok()) return ours.status();
  if (!plain.ok()) return plain.status();
  Made made;
  made.guard.reset(new GuardedStream(loop, *std::move(ours), *std::move(plain), std::move(guard),
                                     std::move(on_end)));
  made.stream = std::move(pair->second);
  return made;
}

GuardedStream::GuardedStream(loop::Loop& loop, Socket client, Socket plain, FrameGuard guard,
                             absl::AnyInvocable<void(absl::Status)> on_end)
    : client_(std::move(client)),
      plain_(std::move(plain)),
      on_end_(std::move(on_end)),
      in_(loop, client_.in.get(), plain_.in.get(),
          [this](absl::Status why) { End(std::move(why)); }),
      out_(loop, plain_.out.get(), client_.out.get(),
           [this](absl::Status why) { End(std::move(why)); }) {
  in_.DistrustSender();
  in_.Inspect(
      [guard = std::move(guard)](absl::string_view bytes) mutable { return guard.Take(bytes); });
}

void GuardedStream::End(absl::Status why) {
  if (on_end_) std::exchange(on_end_, nullptr)(std::move(why));
}

}  // namespace dtrain::rpc
