// SPDX-License-Identifier: Apache-2.0
// What a shepherd that is not ours writes to its agent: the first byte says how the rest is cut
// into pieces, and every second piece carries a descriptor.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "common/loop/frame_channel.h"
#include "common/os/fd.h"
#include "tests/fuzz/expect.h"

namespace {

using dtrain::loop::FrameChannel;

bool SendPiece(int socket, absl::string_view bytes, int fd) {
  iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

int OpenDescriptors() {
  const int next = dup(0);
  DTRAIN_CHECK(next >= 0);
  close(next);
  return next;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view bytes = dtrain::fuzz::Text(data + 1, size - 1);
  const size_t piece = 1 + data[0];
  static dtrain::loop::Loop loop;
  const int before = OpenDescriptors();
  {
    auto pair = dtrain::os::SocketPair();
    DTRAIN_CHECK(pair.ok());
    dtrain::os::UniqueFd writer = std::move(pair->first);
    size_t taken = 0;
    bool closed = false;
    FrameChannel channel(
        loop, std::move(pair->second),
        [&](absl::string_view frame, dtrain::os::UniqueFd) { taken += 4 + frame.size(); },
        [&](absl::Status why) {
          closed = true;
          if (!why.ok()) dtrain::fuzz::ExpectPrintable(why);
        });
    bool carries = false;
    for (size_t at = 0; at < bytes.size() && !closed; at += piece, carries = !carries) {
      if (!SendPiece(writer.get(), bytes.substr(at, piece), carries ? 0 : -1)) break;
      if (at % (16 * piece) == 0) channel.ReadToEnd();
    }
    writer.Reset();
    channel.ReadToEnd();
    DTRAIN_CHECK(closed);
    DTRAIN_CHECK(taken <= bytes.size());
  }
  DTRAIN_CHECK(OpenDescriptors() == before);
  return 0;
}
