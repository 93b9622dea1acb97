// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/frame_guard.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace dtrain::rpc {
namespace {

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kContinuation = 9;
constexpr uint8_t kAck = 1;
constexpr size_t kMessageHeadBytes = 5;  // of gRPC: whether it is compressed, and its length

std::string Frame(uint8_t kind, size_t length, uint8_t flags = 0) {
  std::string out;
  for (int shift : {16, 8, 0}) out.push_back(static_cast<char>(length >> shift & 255));
  out.push_back(static_cast<char>(kind));
  out.push_back(static_cast<char>(flags));
  out.append(4, '\0');
  // A payload that looks like resets; of data it is one message.
  if (kind == kData && length > kMessageHeadBytes) {
    out.push_back('\0');
    for (int shift = 24; shift >= 0; shift -= 8) {
      out.push_back(static_cast<char>((length - kMessageHeadBytes) >> shift & 0xff));
    }
  }
  while (out.size() < 9 + length) out.append(std::string("\0\0\0\3\0\0\0\0\1", 9));
  out.resize(9 + length);
  return out;
}

std::string Times(size_t n, const std::string& text) {
  std::string out;
  while (n-- > 0) out += text;
  return out;
}

TEST(FrameGuard, LetsALongCallPass) {
  FrameGuard guard;
  EXPECT_TRUE(guard.Take(kPreface + Frame(kSettings, 0) + Frame(kHeaders, 200)).ok());
  EXPECT_TRUE(guard.Take(Times(1000, Frame(kData, 16384))).ok());
  EXPECT_TRUE(guard.Take(Frame(kSettings, 0, kAck) + Times(1000, Frame(kHeaders, 200))).ok());
  EXPECT_TRUE(guard.Take(Times(100, Frame(kReset, 4))).ok());
}

TEST(FrameGuard, TellsCallsThatAreTakenBack) {
  FrameGuard guard;
  EXPECT_TRUE(guard.Take(kPreface + Times(100, Frame(kHeaders, 90) + Frame(kReset, 4))).ok());
  EXPECT_EQ(guard.Take(Frame(kHeaders, 90) + Frame(kReset, 4)).code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(FrameGuard, TellsCallsBeyondTheNumberThatWasNotAcknowledged) {
  FrameGuard guard;
  EXPECT_TRUE(guard.Take(kPreface + Frame(kSettings, 6)).ok());
  EXPECT_TRUE(guard.Take(Times(kMostCalls, Frame(kHeaders, 90))).ok());
  EXPECT_FALSE(guard.Take(Frame(kHeaders, 90)).ok());
}

TEST(FrameGuard, TellsHeadersWithoutAnEnd) {
  for (size_t length : {size_t{0}, size_t{1000}, size_t{16384}}) {
    FrameGuard guard;
    ASSERT_TRUE(guard.Take(kPreface + Frame(kHeaders, 100)).ok());
    EXPECT_FALSE(
        guard.Take(Times((64 << 10) / (length + 9) + 1, Frame(kContinuation, length))).ok())
        << length;
  }
  FrameGuard guard;
  EXPECT_FALSE(guard.Take(kPreface + Frame(kHeaders, 70'000)).ok());
}

TEST(FrameGuard, ReadsTheSameHoweverItIsCut) {
  const std::string fine = kPreface + Times(100, Frame(kHeaders, 30) + Frame(kReset, 4));
  for (size_t piece : {1, 2, 3, 5, 8, 13, 100}) {
    FrameGuard guard;
    for (size_t at = 0; at < fine.size(); at += piece) {
      ASSERT_TRUE(guard.Take(absl::string_view(fine).substr(at, piece)).ok()) << piece;
    }
    EXPECT_FALSE(guard.Take(Frame(kReset, 4)).ok()) << piece;
  }
}

}  // namespace
}  // namespace dtrain::rpc
