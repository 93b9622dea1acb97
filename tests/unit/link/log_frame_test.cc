// SPDX-License-Identifier: Apache-2.0
#include "common/link/log_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace dtrain::link {
namespace {

using ::testing::HasSubstr;

v1::LogHead At(uint32_t rank, uint64_t offset) {
  v1::LogHead head;
  head.mutable_at()->set_rank(rank);
  head.mutable_at()->set_stream(v1::STREAM_KIND_STDERR);
  head.mutable_at()->set_offset(offset);
  return head;
}

Frame FrameOf(const std::string& payload) {
  Frame frame;
  frame.header.channel = Channel::kLogs;
  frame.header.size = static_cast<uint32_t>(payload.size());
  frame.payload = SharedBytes(payload);
  return frame;
}

std::string WhyNot(const Frame& frame) {
  const auto decoded = DecodeLogFrame(frame);
  EXPECT_TRUE(absl::IsDataLoss(decoded.status())) << decoded.status();
  return std::string(decoded.status().message());
}

TEST(LogFrameTest, WhatIsEncodedIsDecodedAndTheBytesAreNotCopied) {
  const Frame frame = FrameOf(absl::StrCat(EncodeLogHead(At(7, 1ull << 40)), "bytes"));
  const auto decoded = DecodeLogFrame(frame);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->head.at().rank(), 7u);
  EXPECT_EQ(decoded->head.at().offset(), 1ull << 40);
  EXPECT_EQ(decoded->data.view(), "bytes");
  EXPECT_EQ(decoded->data.owner(), frame.payload.owner());
}

TEST(LogFrameTest, TheEndIsDecoded) {
  v1::LogHead head;
  head.mutable_end()->set_size(9);
  head.mutable_end()->set_lost(std::string(3000, 'x'));
  const auto decoded = DecodeLogFrame(FrameOf(EncodeLogHead(head)));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->head.end().size(), 9u);
}

TEST(LogFrameTest, WhatNoShepherdSendsIsRefused) {
  const std::string head = EncodeLogHead(At(1, 0));
  EXPECT_THAT(WhyNot(FrameOf("")), HasSubstr("no head"));
  EXPECT_THAT(WhyNot(FrameOf("x")), HasSubstr("no head"));
  EXPECT_THAT(WhyNot(FrameOf(head)), HasSubstr("no bytes"));
  EXPECT_THAT(WhyNot(FrameOf(head.substr(0, head.size() - 1))), HasSubstr("its head has"));
  EXPECT_THAT(WhyNot(FrameOf(std::string("\xff\xff") + std::string(70000, 'x'))),
              HasSubstr("its head has 65535 bytes"));
  EXPECT_THAT(WhyNot(FrameOf(std::string("\2\0\xff\xff", 4))), HasSubstr("cannot be read"));
  EXPECT_THAT(WhyNot(FrameOf(std::string("\0\0bytes", 7))), HasSubstr("says nothing"));
  v1::LogHead end;
  end.mutable_end();
  EXPECT_THAT(WhyNot(FrameOf(EncodeLogHead(end) + "x")), HasSubstr("the end has bytes"));
  EXPECT_TRUE(DecodeLogFrame(FrameOf(head + std::string(kMostLogData, 'x'))).ok());
  EXPECT_THAT(WhyNot(FrameOf(head + std::string(kMostLogData + 1, 'x'))),
              HasSubstr("524289 bytes, at most 524288"));
  EXPECT_THAT(WhyNot(FrameOf(EncodeLogHead(At(1, UINT64_MAX)) + "x")), HasSubstr("offset"));
}

TEST(LogFrameTest, OtherFramesAreRefused) {
  Frame frame = FrameOf(EncodeLogHead(At(1, 0)) + "x");
  frame.header.channel = Channel::kJob;
  EXPECT_THAT(WhyNot(frame), HasSubstr("another channel"));
  frame.header.channel = Channel::kLogs;
  frame.header.keep = true;
  EXPECT_THAT(WhyNot(frame), HasSubstr("numbered"));
}

}  // namespace
}  // namespace dtrain::link
