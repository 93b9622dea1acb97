// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/link/log_frame.h"
#include "common/os/fd.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::session {

// The shepherd's end of a socket for output, which sends what the test says.
class LogShepherd {
 public:
  LogShepherd() {
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok());
    ours_ = std::move(pair->first);
    theirs_ = std::move(pair->second);
  }
  os::UniqueFd Take() { return std::move(theirs_); }
  int fd() const { return ours_.get(); }

  static std::string FrameOf(const std::string& payload,
                             link::Channel channel = link::Channel::kLogs) {
    link::Header header;
    header.channel = channel;
    header.size = static_cast<uint32_t>(payload.size());
    const auto bytes = link::EncodeHeader(header);
    return std::string(bytes.data(), bytes.size()) + payload;
  }
  static std::string Piece(uint32_t rank, uint64_t offset, const std::string& bytes) {
    v1::LogHead head;
    head.mutable_at()->set_rank(rank);
    head.mutable_at()->set_stream(v1::STREAM_KIND_STDOUT);
    head.mutable_at()->set_offset(offset);
    return FrameOf(link::EncodeLogHead(head) + bytes);
  }
  static std::string EndOf(uint64_t size, bool ended, const std::string& lost = "") {
    v1::LogHead head;
    head.mutable_end()->set_size(size);
    head.mutable_end()->set_ended(ended);
    head.mutable_end()->set_lost(lost);
    return FrameOf(link::EncodeLogHead(head));
  }
  void Send(const std::string& bytes) {
    ASSERT_EQ(write(fd(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  // What the socket takes of it now: how much that was.
  size_t Offer(const std::string& bytes) {
    const ssize_t n = send(fd(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return n > 0 ? static_cast<size_t>(n) : 0;
  }
  // Again and again, until it takes no more.
  size_t Flood(const std::string& bytes) {
    size_t sent = 0;
    while (const size_t n = Offer(bytes)) sent += n;
    return sent;
  }
  void SendDescriptor(const std::string& bytes) {
    iovec iov{const_cast<char*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int other = STDERR_FILENO;
    std::memcpy(CMSG_DATA(header), &other, sizeof(other));
    ASSERT_EQ(sendmsg(fd(), &message, 0), static_cast<ssize_t>(bytes.size()));
  }
  // The last acknowledgement that has come.
  uint64_t acked() {
    char bytes[link::kHeaderBytes];
    while (recv(fd(), bytes, sizeof(bytes), MSG_DONTWAIT) == sizeof(bytes)) {
      auto header = link::DecodeHeader(absl::string_view(bytes, sizeof(bytes)));
      EXPECT_TRUE(header.ok()) << header.status();
      EXPECT_EQ(header->channel, link::Channel::kLogs);
      EXPECT_GT(header->ack, acked_);
      acked_ = header->ack;
    }
    return acked_;
  }
  void Die() { ours_.Reset(); }

 private:
  os::UniqueFd ours_, theirs_;
  uint64_t acked_ = 0;
};

}  // namespace dtrain::session
