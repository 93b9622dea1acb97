// SPDX-License-Identifier: Apache-2.0
#include "common/link/socket_carrier.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/link/link_core.h"
#include "common/os/fd.h"

namespace dtrain::link {
namespace {

constexpr Duration kCarrierDeadline = std::chrono::seconds(20);

Frame FrameOf(std::string payload) {
  Frame frame;
  frame.payload = SharedBytes(std::move(payload));
  frame.header.size = static_cast<uint32_t>(frame.payload.size());
  return frame;
}

std::string WireOf(const Frame& frame) {
  const auto header = EncodeHeader(frame.header);
  return absl::StrCat(absl::string_view(header.data(), header.size()), frame.payload.view());
}

// A connected pair over TCP on loopback.
std::pair<os::UniqueFd, os::UniqueFd> TcpPair() {
  os::UniqueFd listening(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(listening.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(listen(listening.get(), 1), 0);
  EXPECT_EQ(getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  os::UniqueFd one(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(one.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  os::UniqueFd other(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_TRUE(other);
  return {std::move(one), std::move(other)};
}

int LowestFreeDescriptor() {
  os::UniqueFd next(dup(0));
  return next.get();
}

class SocketCarrierTest : public ::testing::Test {
 protected:
  SocketCarrierTest() {
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok());
    left_fd_ = std::move(pair->first);
    right_fd_ = std::move(pair->second);
  }
  void MakeRight() {
    right_.emplace(loop_, std::move(right_fd_),
                   CarrierHandlers{[this]() -> std::optional<Frame> {
                                     if (next_) return next_();
                                     return std::nullopt;
                                   },
                                   [this](Frame frame) {
                                     frames_.emplace_back(frame.payload.view());
                                     if (on_frame_) on_frame_();
                                     if (frames_.size() == stop_after_) loop_.Stop();
                                   },
                                   [this](absl::Status why) {
                                     EXPECT_FALSE(closed_.has_value());
                                     closed_ = std::move(why);
                                     loop_.Stop();
                                   }});
  }
  void Run() {
    loop::Timer deadline(loop_);
    bool late = false;
    deadline.After(kCarrierDeadline, [&] {
      late = true;
      loop_.Stop();
    });
    loop_.context().restart();
    loop_.Run();
    ASSERT_FALSE(late);
  }
  // All that can happen now has: nothing else comes with a timer that is due.
  void Settle() {
    loop_.context().restart();
    for (size_t ran = 2; ran > 1;) {
      bool due = false;
      loop::Timer timer(loop_);
      timer.At(loop_.Now(), [&] { due = true; });
      for (ran = 0; !due && !loop_.context().stopped();) ran += loop_.context().run_one();
      ran += loop_.context().poll();
    }
  }
  void WriteRaw(absl::string_view bytes) {
    ASSERT_EQ(write(left_fd_.get(), bytes.data(), bytes.size()),
              static_cast<ssize_t>(bytes.size()));
  }
  CarrierHandlers From(std::deque<Frame>& frames) {
    return {[&frames]() -> std::optional<Frame> {
              if (frames.empty()) return std::nullopt;
              Frame frame = std::move(frames.front());
              frames.pop_front();
              return frame;
            },
            [](Frame) {}, [](absl::Status) {}};
  }
  void ExpectAllArrive() {
    std::deque<Frame> frames;
    std::vector<std::string> sent;
    for (size_t size : {size_t{0}, size_t{1}, size_t{3}, size_t{4096}, size_t{300'000},
                        kMostPayload, size_t{2}}) {
      sent.emplace_back(size, static_cast<char>('a' + sent.size()));
      frames.push_back(FrameOf(sent.back()));
    }
    for (int i = 0; i < 1000; ++i) {
      sent.push_back(absl::StrCat(i));
      frames.push_back(FrameOf(sent.back()));
    }
    MakeRight();
    SocketCarrier left(loop_, std::move(left_fd_), From(frames));
    stop_after_ = sent.size();
    left.Pump();
    Run();
    EXPECT_EQ(frames_, sent);
    EXPECT_EQ(left.queued_bytes(), 0u);
  }
  // How many bytes are taken for a peer that reads nothing.
  size_t TakenForASleeper(os::UniqueFd socket) {
    size_t given = 0;
    const SharedBytes piece(std::string(kPieceBytes, 'x'));
    SocketCarrier left(loop_, std::move(socket),
                       {[&]() -> std::optional<Frame> {
                          given += kHeaderBytes + piece.size();
                          return Frame{{static_cast<uint32_t>(piece.size())}, piece};
                        },
                        [](Frame) {}, [](absl::Status) {}});
    left.Pump();
    // Until nothing goes any more.
    size_t before = 0;
    loop::Timer look(loop_);
    std::function<void()> again = [&] {
      if (given == before) return loop_.Stop();
      before = given;
      look.After(std::chrono::milliseconds(100), [&] { again(); });
    };
    again();
    Run();
    EXPECT_LT(left.queued_bytes(), SocketCarrier::kMostQueued + kHeaderBytes + kPieceBytes);
    return given;
  }

  loop::Loop loop_;
  os::UniqueFd left_fd_;
  os::UniqueFd right_fd_;
  std::optional<SocketCarrier> right_;
  std::function<std::optional<Frame>()> next_;
  std::function<void()> on_frame_;
  std::vector<std::string> frames_;
  std::optional<absl::Status> closed_;
  size_t stop_after_ = 0;
};

TEST_F(SocketCarrierTest, FramesOfAllSizesArriveWholeAndInOrder) { ExpectAllArrive(); }

TEST_F(SocketCarrierTest, FramesOfAllSizesArriveOverTcp) {
  std::tie(left_fd_, right_fd_) = TcpPair();
  ExpectAllArrive();
}

TEST_F(SocketCarrierTest, ADescriptorBreaksItAndStaysNowhere) {
  MakeRight();
  auto pipe = os::Pipe();
  ASSERT_TRUE(pipe.ok());
  const int before = LowestFreeDescriptor();
  std::string bytes = WireOf(FrameOf("with a descriptor"));
  iovec iov{bytes.data(), bytes.size()};
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
  const int fd = pipe->second.get();
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  ASSERT_GT(sendmsg(left_fd_.get(), &message, 0), 0);
  pipe->second.Reset();
  Run();
  EXPECT_EQ(closed_->code(), absl::StatusCode::kDataLoss) << *closed_;
  EXPECT_TRUE(frames_.empty());
  // Nobody holds the write end any more: the read end is at its end.
  char byte;
  EXPECT_EQ(read(pipe->first.get(), &byte, 1), 0);
  EXPECT_LE(LowestFreeDescriptor(), before);
}

TEST_F(SocketCarrierTest, AnInvalidFrameBreaksItAfterThoseBefore) {
  MakeRight();
  std::string invalid = WireOf(FrameOf(""));
  invalid[4] = 9;
  WriteRaw(WireOf(FrameOf("fine")) + invalid + WireOf(FrameOf("not read")));
  Run();
  EXPECT_EQ(closed_->code(), absl::StatusCode::kDataLoss) << *closed_;
  EXPECT_EQ(frames_, std::vector<std::string>{"fine"});
}

TEST_F(SocketCarrierTest, TheEndOfTheStreamIsToldAndWhetherItWasOrderly) {
  for (const size_t missing : {0, 1, 27}) {
    auto pair = os::SocketPair();
    ASSERT_TRUE(pair.ok());
    left_fd_ = std::move(pair->first);
    right_fd_ = std::move(pair->second);
    closed_.reset();
    frames_.clear();
    MakeRight();
    const std::string wire = WireOf(FrameOf("whole")) + WireOf(FrameOf("last"));
    WriteRaw(wire.substr(0, wire.size() - missing));
    left_fd_.Reset();
    Run();
    EXPECT_EQ(closed_->ok(), missing == 0) << *closed_;
    EXPECT_EQ(frames_.size(), missing == 0 ? 2u : 1u);
  }
}

TEST_F(SocketCarrierTest, ReadToEndHandsOverAllThatHasArrivedAndTheEnd) {
  MakeRight();
  std::string wire;
  for (int i = 0; i < 1000; ++i) wire += WireOf(FrameOf("x"));
  WriteRaw(wire);
  left_fd_.Reset();
  right_->ReadToEnd();
  EXPECT_EQ(frames_.size(), 1000u);
  ASSERT_TRUE(closed_.has_value());
  EXPECT_TRUE(closed_->ok()) << *closed_;
}

// An urgent frame waits for what was taken, and for nothing else.
TEST_F(SocketCarrierTest, LittleIsTakenForAPeerThatDoesNotRead) {
  const size_t taken = TakenForASleeper(std::move(left_fd_));
  EXPECT_LE(taken, kPieceBytes + (96u << 10));
  RecordProperty("bytes", static_cast<int>(taken));
}

TEST_F(SocketCarrierTest, APeerThatSendsMuchLeavesTheLoopToOthers) {
  MakeRight();
  std::string wire;
  for (int i = 0; i < 5000; ++i) wire += WireOf(FrameOf(""));
  // 120 KB, which the socket takes at once.
  const int size = 1 << 20;
  ASSERT_EQ(setsockopt(left_fd_.get(), SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)), 0);
  WriteRaw(wire);
  size_t seen = 0, most = 0;
  std::function<void()> other = [&] {
    most = std::max(most, frames_.size() - seen);
    seen = frames_.size();
    if (seen < 5000) loop_.Post([&] { other(); });
  };
  loop_.Post([&] { other(); });
  stop_after_ = 5000;
  Run();
  EXPECT_EQ(frames_.size(), 5000u);
  EXPECT_LE(most, 2u * SocketCarrier::kFramesPerTurn);
}

TEST_F(SocketCarrierTest, WhatAFrameCallsForIsSentWithoutBeingAskedFor) {
  std::optional<Frame> answer;
  next_ = [&] { return std::exchange(answer, std::nullopt); };
  on_frame_ = [&] { answer = FrameOf("answer"); };
  MakeRight();
  WriteRaw(WireOf(FrameOf("question")));
  loop::FdWatch watch(loop_, left_fd_.get());
  watch.OnReadable([&] { loop_.Stop(); });
  Run();
  char bytes[100];
  const ssize_t n = read(left_fd_.get(), bytes, sizeof(bytes));
  EXPECT_EQ(std::string(bytes, static_cast<size_t>(std::max<ssize_t>(n, 0))),
            WireOf(FrameOf("answer")));
}

TEST_F(SocketCarrierTest, WhilePausedItReadsNothingAndSends) {
  std::optional<Frame> frame = FrameOf("still sent");
  next_ = [&] { return std::exchange(frame, std::nullopt); };
  MakeRight();
  right_->SetPaused(true);
  WriteRaw(WireOf(FrameOf("one")) + WireOf(FrameOf("two")));
  right_->Pump();
  Settle();
  EXPECT_TRUE(frames_.empty());
  char bytes[100];
  EXPECT_EQ(read(left_fd_.get(), bytes, sizeof(bytes)),
            static_cast<ssize_t>(WireOf(FrameOf("still sent")).size()));
  right_->SetPaused(false);
  stop_after_ = 2;
  Run();
  EXPECT_EQ(frames_, (std::vector<std::string>{"one", "two"}));
}

TEST_F(SocketCarrierTest, PausedByAFrameItHandsOverNoOther) {
  on_frame_ = [&] { right_->SetPaused(true); };
  MakeRight();
  WriteRaw(WireOf(FrameOf("one")) + WireOf(FrameOf("two")) + WireOf(FrameOf("three")));
  for (size_t i = 1; i <= 3; ++i) {
    stop_after_ = i;
    Run();
    EXPECT_EQ(frames_.size(), i);
    right_->SetPaused(false);
    right_->SetPaused(true);  // nothing comes of it
    Settle();
    EXPECT_EQ(frames_.size(), i);
    right_->SetPaused(false);
  }
  left_fd_.Reset();
  Run();
  EXPECT_TRUE(closed_->ok()) << *closed_;
}

// Its peer must wait.
TEST_F(SocketCarrierTest, APausedOneTakesNothingFromTheSocket) {
  MakeRight();
  right_->SetPaused(true);
  ASSERT_TRUE(os::SetNonBlocking(left_fd_.get(), true).ok());
  const std::string wire = WireOf(FrameOf(std::string(1000, 'x')));
  while (write(left_fd_.get(), wire.data(), wire.size()) > 0) Settle();
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_TRUE(frames_.empty());
}

TEST_F(SocketCarrierTest, ReadToEndHandsOverAllOfAPausedOneToo) {
  on_frame_ = [&] { right_->SetPaused(true); };
  MakeRight();
  std::string wire;
  for (int i = 0; i < 1000; ++i) wire += WireOf(FrameOf("x"));
  WriteRaw(wire);
  left_fd_.Reset();
  Settle();
  EXPECT_EQ(frames_.size(), 1u);
  EXPECT_FALSE(closed_.has_value());
  right_->ReadToEnd();
  EXPECT_EQ(frames_.size(), 1000u);
  ASSERT_TRUE(closed_.has_value());
  EXPECT_TRUE(closed_->ok()) << *closed_;
}

TEST_F(SocketCarrierTest, ItMayBeDestroyedByWhatItCalls) {
  on_frame_ = [this] {
    right_.reset();
    loop_.Stop();
  };
  MakeRight();
  WriteRaw(WireOf(FrameOf("one")) + WireOf(FrameOf("two")));
  Run();
  EXPECT_EQ(frames_, std::vector<std::string>{"one"});
}

TEST_F(SocketCarrierTest, APeerThatIsGoneIsToldByTheReadingSideOnly) {
  size_t given = 0;
  next_ = [&]() -> std::optional<Frame> {
    ++given;
    return FrameOf(std::string(1000, 'x'));
  };
  MakeRight();
  left_fd_.Reset();
  right_->Pump();
  EXPECT_FALSE(closed_.has_value());
  const size_t until_now = given;
  right_->Pump();  // it is known to take nothing
  EXPECT_EQ(given, until_now);
  Run();
  EXPECT_TRUE(closed_.has_value());
}

TEST_F(SocketCarrierTest, WhatThePeerSaidBeforeItWentIsRead) {
  next_ = [&]() -> std::optional<Frame> { return FrameOf(std::string(1000, 'x')); };
  MakeRight();
  WriteRaw(WireOf(FrameOf("last words")));
  left_fd_.Reset();
  right_->Pump();
  Run();
  EXPECT_EQ(frames_, std::vector<std::string>{"last words"});
  EXPECT_TRUE(closed_.has_value());
}

}  // namespace
}  // namespace dtrain::link
