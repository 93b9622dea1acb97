// SPDX-License-Identifier: Apache-2.0
// What others than the launcher read of a job's output.
#include "agent/session/log_relay.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace dtrain::session {
namespace {

constexpr auto kOut = v1::STREAM_KIND_STDOUT;
constexpr uint64_t kMiB = 1 << 20;

v1::Report ReportOf(std::vector<uint32_t> ranks, uint32_t pid = 0) {
  v1::Report report;
  for (const uint32_t rank : ranks) {
    v1::RankOnNode& place = *report.mutable_job()->add_ranks();
    place.set_rank(rank);
    place.set_pid(pid);
  }
  return report;
}

class ReadTest : public ::testing::Test {
 protected:
  ReadTest() {
    spool_.Reset(open(::testing::TempDir().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    EXPECT_TRUE(spool_);
    relay_.Expect(ReportOf({3, 4}));
    EXPECT_TRUE(Open(3, Copy()).ok());
  }
  os::UniqueFd Copy() { return os::UniqueFd(fcntl(spool_.get(), F_DUPFD_CLOEXEC, 0)); }
  absl::Status Open(uint32_t rank, os::UniqueFd spool, v1::StreamKind stream = kOut) {
    return relay_.Opened(rank, stream, std::move(spool), geteuid());
  }
  void Write(const std::string& text) {
    ASSERT_EQ(pwrite(spool_.get(), text.data(), text.size(), static_cast<off_t>(size_)),
              static_cast<ssize_t>(text.size()));
    size_ += text.size();
    relay_.Grown(3, kOut, size_);
  }
  v1::LogPiece Read(uint64_t offset, size_t limit = kMiB) {
    auto piece = relay_.Read(3, kOut, offset, limit);
    EXPECT_TRUE(piece.ok()) << piece.status();
    return piece.ok() ? *piece : v1::LogPiece();
  }

  os::UniqueFd spool_;
  uint64_t size_ = 0;
  loop::Loop loop_;
  LogRelay relay_{loop_, [](uint32_t, v1::StreamKind, uint64_t) {},
                  [](uint32_t, const std::string&) {}};
};

TEST_F(ReadTest, APieceIsWhatWasAskedFor) {
  Write("hello");
  EXPECT_EQ(Read(0).data(), "hello");
  EXPECT_EQ(Read(1, 3).data(), "ell");
  EXPECT_EQ(Read(1, 3).offset(), 1u);
  EXPECT_EQ(Read(1, 3).size(), 5u);
  EXPECT_EQ(Read(0, 0).data(), "");
  EXPECT_EQ(relay_.size(3, kOut), 5u);
  EXPECT_EQ(relay_.size(4, kOut), 0u);
}

// A shepherd is its user's, and may be anything.
TEST_F(ReadTest, WhatNoShepherdOfOursSendsIsRefused) {
  EXPECT_TRUE(Open(4, os::UniqueFd()).ok());
  EXPECT_TRUE(Open(4, Copy()).ok());
  EXPECT_EQ(Open(4, Copy()).message(), "it opened output of rank 4 twice");
  EXPECT_EQ(Open(5, Copy()).message(), "it reported output 1 of rank 5, which is not on this node");
  EXPECT_TRUE(absl::IsInvalidArgument(Open(4, Copy(), static_cast<v1::StreamKind>(7))));
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  os::UniqueFd other(pipes[1]);
  EXPECT_FALSE(Open(4, os::UniqueFd(pipes[0]), v1::STREAM_KIND_STDERR).ok());
  EXPECT_EQ(relay_.Opened(4, v1::STREAM_KIND_STDERR, Copy(), geteuid() + 1).message(),
            "the file for output of rank 4 is not one to read from: it is another user's");
  EXPECT_TRUE(absl::IsNotFound(relay_.Read(6, kOut, 0, kMiB).status()));
}

// A stream has a file from its first byte on.
TEST_F(ReadTest, OfASilentStreamThereIsNothingYet) {
  EXPECT_TRUE(absl::IsNotFound(relay_.Read(4, kOut, 0, kMiB).status()));
  relay_.Expect(ReportOf({4, 3}, 17));
  Write("the one that has a file keeps it");
  EXPECT_EQ(Read(4).data(), "one that has a file keeps it");
  auto piece = relay_.Read(4, kOut, 0, kMiB);
  ASSERT_TRUE(piece.ok()) << piece.status();
  EXPECT_EQ(piece->data(), "");
  EXPECT_FALSE(piece->ended());
  relay_.Finished(v1::Finished());
  EXPECT_TRUE(relay_.Read(4, kOut, 0, kMiB)->ended());
}

TEST_F(ReadTest, BehindTheEndThereIsNothingYet) {
  Write("hello");
  const v1::LogPiece piece = Read(~uint64_t{0});
  EXPECT_EQ(piece.data(), "");
  EXPECT_EQ(piece.offset(), 5u);
  EXPECT_FALSE(piece.ended());
}

// What is written and was not told of is not read: the shepherd may still be at it.
TEST_F(ReadTest, OnlyWhatWasToldIsRead) {
  Write("hello");
  ASSERT_EQ(pwrite(spool_.get(), "more", 4, 5), 4);
  EXPECT_EQ(Read(0).data(), "hello");
}

TEST_F(ReadTest, TheEndIsToldWithTheLastPiece) {
  Write("hello");
  v1::Finished finished;
  v1::LogEnd& end = *finished.add_logs();
  end.set_rank(3);
  end.set_stream(kOut);
  end.set_size(5);
  relay_.Finished(finished);
  EXPECT_TRUE(Read(5).ended());
  EXPECT_EQ(Read(2).data(), "llo");
}

TEST_F(ReadTest, BelowWhatWasDroppedTheOffsetMovesUp) {
  Write(absl::StrCat(std::string(8 * kMiB, 'a'), "the end"));
  ASSERT_EQ(fallocate(spool_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4 * kMiB), 0);
  const v1::LogPiece piece = Read(100, 10);
  EXPECT_EQ(piece.offset(), 4 * kMiB);
  EXPECT_EQ(piece.data(), "aaaaaaaaaa");
  EXPECT_EQ(Read(8 * kMiB).data(), "the end");
}

TEST_F(ReadTest, APieceIsNeverLargerThanAMessageMayBe) {
  Write(std::string(3 * kMiB, 'a'));
  EXPECT_EQ(Read(0, ~size_t{0}).data().size(), kMiB);
}

TEST_F(ReadTest, WhatIsNotThereIsRefused) {
  EXPECT_TRUE(absl::IsNotFound(relay_.Read(4, kOut, 0, 1).status()));
  EXPECT_TRUE(absl::IsNotFound(relay_.Read(3, v1::STREAM_KIND_STDERR, 0, 1).status()));
  EXPECT_TRUE(absl::IsNotFound(relay_.Read(3, static_cast<v1::StreamKind>(9), 0, 1).status()));
}

}  // namespace
}  // namespace dtrain::session
