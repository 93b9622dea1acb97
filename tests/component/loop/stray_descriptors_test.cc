// SPDX-License-Identifier: Apache-2.0
// On this kernel, and as on those that keep no descriptors away (old-kernel).
#include "common/loop/stray_descriptors.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/os/fd.h"

namespace dtrain::loop {
namespace {

constexpr int kDeadlineMs = 20000;

bool Sends(int socket, const std::string& bytes, int fd, int flags = 0) {
  iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  return sendmsg(socket, &message, flags | MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

// A connection to a stranger, who has a descriptor to give away: his only one of a pipe.
struct Connection {
  Connection() {
    auto pair = os::SocketPair();
    auto pipe = os::Pipe();
    EXPECT_TRUE(pair.ok() && pipe.ok());
    ours = StrangersSocket(std::move(pair->first));
    theirs = std::move(pair->second);
    given = std::move(pipe->second);
    others = std::move(pipe->first);
    os::RefuseDescriptors(ours.get());
  }
  // False: the kernel does not let him.
  bool Gives(int flags = 0) {
    const bool sent = Sends(theirs.get(), "x", given.get(), flags);
    EXPECT_TRUE(sent || errno == EPERM) << std::strerror(errno);
    given.Reset();
    return sent;
  }
  // Whether somebody still has what was given, after `ms` at most.
  bool IsOpen(int ms = 0) {
    pollfd end{others.get(), POLLIN, 0};
    return poll(&end, 1, ms) == 0;
  }
  std::string Receive() {
    char bytes[16];
    const ssize_t n = ReceiveBytes(ours.get(), bytes, sizeof(bytes));
    if (n >= 0) return std::string(bytes, static_cast<size_t>(n));
    return errno == EBADMSG ? "EBADMSG" : errno == EAGAIN ? "EAGAIN" : std::strerror(errno);
  }

  StrangersSocket ours;
  os::UniqueFd theirs, given, others;
};

TEST(StrayDescriptorsTest, BytesComeAsTheyAre) {
  Connection to;
  EXPECT_EQ(to.Receive(), "EAGAIN");
  ASSERT_EQ(send(to.theirs.get(), "one", 3, 0), 3);
  ASSERT_EQ(send(to.theirs.get(), "two", 3, 0), 3);
  EXPECT_EQ(to.Receive(), "onetwo");
  EXPECT_EQ(to.Receive(), "EAGAIN");
  to.theirs.Reset();
  EXPECT_EQ(to.Receive(), "");
}

// Whatever it rides on, it is never ours to close: either the kernel leaves it with its sender, or
// it outlives our close, and goes with another process. Also one that was never read.
TEST(StrayDescriptorsTest, ADescriptorIsClosedByNoThreadOfOurs) {
  for (const int flags : {0, static_cast<int>(MSG_OOB)}) {
    for (const bool read : {true, false}) {
      SCOPED_TRACE(absl::StrCat("flags ", flags, read ? ", read" : ", not read"));
      Connection to;
      ASSERT_EQ(send(to.theirs.get(), "before", 6, 0), 6);
      if (!to.Gives(flags)) continue;
      if (read) {
        std::string came = to.Receive();
        if (came == "before") came = to.Receive();  // what is out of band ends a read
        EXPECT_EQ(came, "EBADMSG");
      }
      EXPECT_TRUE(to.IsOpen());
      to.ours = {};
      EXPECT_TRUE(to.IsOpen());
      EXPECT_FALSE(to.IsOpen(kDeadlineMs));
    }
  }
}

// Others are served meanwhile, and one process takes them all.
TEST(StrayDescriptorsTest, ManyGoAtOnce) {
  std::vector<Connection> all(100);
  for (Connection& each : all) {
    if (!each.Gives()) return;
    each.ours = {};
  }
  for (Connection& each : all) EXPECT_FALSE(each.IsOpen(kDeadlineMs));
}

}  // namespace
}  // namespace dtrain::loop
