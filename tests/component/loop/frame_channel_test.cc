// SPDX-License-Identifier: Apache-2.0
#include "common/loop/frame_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/loop/byte_pump.h"
#include "common/os/fd.h"

namespace dtrain::loop {
namespace {

constexpr Duration kDeadline = std::chrono::seconds(20);

class FrameChannelTest : public ::testing::Test {
 protected:
  FrameChannelTest() {
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok());
    left_fd_ = std::move(pair->first);
    right_.emplace(
        loop_, std::move(pair->second),
        [this](absl::string_view frame, os::UniqueFd fd) {
          frames_.emplace_back(frame);
          fds_.push_back(std::move(fd));
          if (frames_.size() == stop_after_) loop_.Stop();
        },
        [this](absl::Status why) {
          closed_ = why;
          loop_.Stop();
        });
  }
  void Run() {
    Timer deadline(loop_);
    bool late = false;
    deadline.After(kDeadline, [&] {
      late = true;
      loop_.Stop();
    });
    loop_.context().restart();
    loop_.Run();
    ASSERT_FALSE(late);
  }
  void WriteRaw(absl::string_view bytes) {
    ASSERT_EQ(write(left_fd_.get(), bytes.data(), bytes.size()),
              static_cast<ssize_t>(bytes.size()));
  }

  Loop loop_;
  os::UniqueFd left_fd_;
  std::optional<FrameChannel> right_;
  std::vector<std::string> frames_;
  std::vector<os::UniqueFd> fds_;
  std::optional<absl::Status> closed_;
  size_t stop_after_ = 0;
};

TEST_F(FrameChannelTest, FramesOfAllSizesArriveWholeAndInOrder) {
  FrameChannel left(
      loop_, std::move(left_fd_), [](absl::string_view, os::UniqueFd) {}, [](absl::Status) {});
  std::vector<std::string> sent;
  for (size_t size : {0u, 1u, 3u, 4096u, 300'000u, 5'000'000u, 2u}) {
    sent.emplace_back(size, static_cast<char>('a' + sent.size()));
    EXPECT_TRUE(left.Send(sent.back()).ok());
  }
  stop_after_ = sent.size();
  Run();
  EXPECT_EQ(frames_, sent);
}

TEST_F(FrameChannelTest, DescriptorsComeWithTheFrameTheyWereSentWith) {
  FrameChannel left(
      loop_, std::move(left_fd_), [](absl::string_view, os::UniqueFd) {}, [](absl::Status) {});
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  EXPECT_TRUE(left.Send("none").ok());
  EXPECT_TRUE(left.Send("write end", pipe->second.get()).ok());
  EXPECT_TRUE(left.Send("none again").ok());
  stop_after_ = 3;
  Run();
  EXPECT_FALSE(fds_[0]);
  ASSERT_TRUE(fds_[1]);
  EXPECT_FALSE(fds_[2]);
  ASSERT_EQ(write(fds_[1].get(), "x", 1), 1);
  char c = 0;
  ASSERT_EQ(read(pipe->first.get(), &c, 1), 1);
  EXPECT_EQ(c, 'x');
}

TEST_F(FrameChannelTest, OrderlyEndIsOk) {
  left_fd_.Reset();
  Run();
  EXPECT_TRUE(closed_->ok());
}

TEST_F(FrameChannelTest, ATornFrameIsAnError) {
  WriteRaw(absl::string_view("\x05\0\0\0abc", 7));
  left_fd_.Reset();
  Run();
  EXPECT_EQ(closed_->code(), absl::StatusCode::kDataLoss);
}

TEST_F(FrameChannelTest, AHugeLengthIsRefusedBeforeAllocation) {  // I6
  WriteRaw(absl::string_view("\xff\xff\xff\x7f", 4));
  Run();
  EXPECT_EQ(closed_->code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(frames_.empty());
}

// A peer of ours may be asked to pass on more than that.
TEST_F(FrameChannelTest, AFrameThatIsTooLongIsNotSent) {
  FrameChannel left(
      loop_, std::move(left_fd_), [](absl::string_view, os::UniqueFd) {}, [](absl::Status) {});
  const absl::Status sent = left.Send(std::string(FrameChannel::kMaxFrame + 1, 'x'));
  EXPECT_EQ(sent.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(sent.message().find("67108865 bytes"), sent.message().npos);
  EXPECT_EQ(left.queued_bytes(), 0u);
  EXPECT_TRUE(left.Send("fits").ok());
  stop_after_ = 1;
  Run();
  ASSERT_EQ(frames_.size(), 1u);
  EXPECT_EQ(frames_[0], "fits");
}

TEST_F(FrameChannelTest, AFrameThatClaimsADescriptorAndHasNoneIsRefused) {
  WriteRaw(absl::string_view("\x01\0\0\x80z", 5));
  Run();
  EXPECT_EQ(closed_->code(), absl::StatusCode::kDataLoss);
}

TEST_F(FrameChannelTest, DescriptorsThatBelongToNoFrameAreRefused) {
  for (const size_t count : {1, 16, 17, 253}) {
    auto pair = os::SocketPair();
    ASSERT_TRUE(pair.ok());
    std::optional<absl::Status> closed;
    FrameChannel channel(
        loop_, std::move(pair->second), [](absl::string_view, os::UniqueFd) {},
        [&](absl::Status why) {
          closed = std::move(why);
          loop_.Stop();
        });
    // A whole frame without the mark that it carries one.
    std::string frame("\x01\0\0\0x", 5);
    iovec iov{frame.data(), frame.size()};
    std::vector<char> control(CMSG_SPACE(count * sizeof(int)));
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    const std::vector<int> fds(count, STDERR_FILENO);
    std::memcpy(CMSG_DATA(header), fds.data(), count * sizeof(int));
    ASSERT_EQ(sendmsg(pair->first.get(), &message, 0), 5);
    Run();
    ASSERT_TRUE(closed.has_value()) << count;
    EXPECT_TRUE(absl::IsDataLoss(*closed)) << *closed;
  }
}

// Nor do they stay open here.
TEST_F(FrameChannelTest, WhereNoneMayComeOneIsRefused) {
  auto pair = os::SocketPair();
  ASSERT_TRUE(pair.ok());
  auto watched = os::Pipe();
  ASSERT_TRUE(watched.ok());
  int frames = 0;
  std::optional<absl::Status> closed;
  std::optional<FrameChannel> right;
  right.emplace(
      loop_, std::move(pair->second), [&](absl::string_view, const os::UniqueFd&) { ++frames; },
      [&](absl::Status why) {
        closed = std::move(why);
        loop_.Stop();
      },
      FrameChannel::Descriptors::kRefused);
  FrameChannel left(
      loop_, std::move(pair->first), [](absl::string_view, const os::UniqueFd&) {},
      [](const absl::Status&) {});
  EXPECT_TRUE(left.Send("without").ok());
  EXPECT_TRUE(left.Send("with", watched->second.get()).ok());
  watched->second.Reset();
  Run();
  ASSERT_TRUE(closed.has_value());
  EXPECT_TRUE(absl::IsDataLoss(*closed)) << *closed;
  EXPECT_LE(frames, 1);
  right.reset();
  char byte;
  EXPECT_EQ(read(watched->first.get(), &byte, 1), 0) << "somebody still has the other end";
}

TEST_F(FrameChannelTest, DescriptorsThatWaitAreCounted) {
  FrameChannel left(
      loop_, std::move(left_fd_), [](absl::string_view, const os::UniqueFd&) {},
      [](const absl::Status&) {});
  const std::string large(4 << 20, 'x');
  EXPECT_TRUE(left.Send(large).ok());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(left.Send("with", STDERR_FILENO).ok());
  EXPECT_EQ(left.queued_descriptors(), 3u);
  stop_after_ = 4;
  Run();
  EXPECT_EQ(left.queued_descriptors(), 0u);
}

// Who has the other end may write faster than anybody reads.
TEST_F(FrameChannelTest, ReadToEndEndsThoughMoreComesAllTheTime) {
  std::atomic<bool> over = false;
  std::thread writer([&] {
    const std::string empty_frames(64 << 10, '\0');
    while (!over) send(left_fd_.get(), empty_frames.data(), empty_frames.size(), MSG_DONTWAIT);
  });
  right_->ReadToEnd();
  over = true;
  writer.join();
  EXPECT_FALSE(closed_.has_value());
}

TEST_F(FrameChannelTest, ReadToEndHandsOverWhatADeadPeerSaidLast) {
  WriteRaw(absl::string_view("\x03\0\0\0one\x03\0\0\0two", 14));
  left_fd_.Reset();
  right_->ReadToEnd();
  EXPECT_THAT(frames_, ::testing::ElementsAre("one", "two"));
  EXPECT_TRUE(closed_->ok());
}

TEST_F(FrameChannelTest, MayBeDestroyedFromItsOwnCallback) {
  auto pair = os::SocketPair();
  ASSERT_TRUE(pair.ok());
  std::optional<FrameChannel> doomed;
  doomed.emplace(
      loop_, std::move(pair->first),
      [&](absl::string_view, os::UniqueFd) {
        doomed.reset();
        loop_.Stop();
      },
      [](absl::Status) {});
  ASSERT_EQ(write(pair->second.get(), "\0\0\0\0\0\0\0\0", 8), 8);
  Run();
  EXPECT_FALSE(doomed.has_value());
}

TEST(BytePump, AnInspectorSeesWhatIsPassedOnAndMayEndIt) {
  Loop loop;
  auto in = os::Pipe();
  auto out = os::Pipe();
  ASSERT_TRUE(in.ok() && out.ok());
  std::optional<absl::Status> end;
  BytePump pump(loop, in->first.get(), out->second.get(), [&](absl::Status status) {
    end = status;
    loop.Stop();
  });
  std::string seen;
  pump.Inspect([&](absl::string_view bytes) {
    seen.append(bytes.data(), bytes.size());
    if (seen == "good") {
      loop.Post([&] { EXPECT_EQ(write(in->second.get(), "bad", 3), 3); });
      return absl::OkStatus();
    }
    return absl::ResourceExhaustedError("enough");
  });
  ASSERT_EQ(write(in->second.get(), "good", 4), 4);
  loop.Run();
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->message(), "enough");
  EXPECT_EQ(seen, "goodbad");
  out->second.Reset();
  char passed[16] = {};
  EXPECT_EQ(read(out->first.get(), passed, sizeof(passed)), 4);  // and not the rest
}

TEST(BytePump, CopiesAllAndSaysTheEnd) {
  Loop loop;
  auto in = os::Pipe();
  auto out = os::SocketPair();
  ASSERT_TRUE(in.ok() && out.ok());
  std::optional<absl::Status> end;
  BytePump pump(loop, in->first.get(), out->first.get(), [&](absl::Status status) {
    end = status;
    shutdown(out->first.get(), SHUT_WR);
  });
  const std::string sent(10 << 20, 'q');
  std::string got;
  std::optional<FdWatch> feed(std::in_place, loop, in->second.get());
  ASSERT_TRUE(os::SetNonBlocking(in->second.get(), true).ok());
  ASSERT_TRUE(os::SetNonBlocking(out->second.get(), true).ok());
  size_t written = 0;
  std::function<void()> write_more = [&] {
    ssize_t n = write(in->second.get(), sent.data() + written, sent.size() - written);
    if (n > 0) written += static_cast<size_t>(n);
    if (written < sent.size()) {
      feed->OnWritable(write_more);
    } else {
      feed.reset();
      in->second.Reset();
    }
  };
  feed->OnWritable(write_more);
  FdWatch drain(loop, out->second.get());
  std::function<void()> read_more = [&] {
    char buffer[65536];
    ssize_t n = read(out->second.get(), buffer, sizeof(buffer));
    if (n == 0) {
      loop.Stop();
      return;
    }
    if (n > 0) got.append(buffer, static_cast<size_t>(n));
    drain.OnReadable(read_more);
  };
  drain.OnReadable(read_more);
  Timer deadline(loop);
  deadline.After(kDeadline, [&] { loop.Stop(); });
  loop.Run();
  EXPECT_EQ(got, sent);
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->ok());
}

}  // namespace
}  // namespace dtrain::loop
