// SPDX-License-Identifier: Apache-2.0
#include "launcher/journal/frame.h"

#include <gtest/gtest.h>

namespace dtrain::journal {
namespace {

TEST(JournalFrame, HasTheLayoutThatIsDocumented) {
  std::string bytes;
  AppendFrame('1', "23456789", &bytes);
  // The check value of CRC-32C: that of "123456789" is E3069283.
  EXPECT_EQ(bytes, std::string("\x08\0\0\0"
                               "1"
                               "\x83\x92\x06\xE3"
                               "23456789",
                               17));
  const auto frame = CutFrame(bytes);
  ASSERT_TRUE(frame.has_value());
  EXPECT_EQ(frame->type, '1');
  EXPECT_EQ(frame->payload, "23456789");
  EXPECT_EQ(frame->size(), bytes.size());
  EXPECT_TRUE(frame->IsCorrect());
}

TEST(JournalFrame, FollowsAnother) {
  std::string bytes;
  AppendFrame(1, "a", &bytes);
  AppendFrame(2, "bc", &bytes);
  const size_t second = CutFrame(bytes)->size();
  EXPECT_EQ(CutFrame(bytes.substr(second))->payload, "bc");
}

TEST(JournalFrame, IsWholeOrNone) {
  std::string bytes;
  AppendFrame(1, "abc", &bytes);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(CutFrame(bytes.substr(0, size)).has_value()) << size;
  }
}

TEST(JournalFrame, ZerosAreNone) { EXPECT_FALSE(CutFrame(std::string(100, '\0')).has_value()); }

TEST(JournalFrame, ALengthBeyondTheLimitIsNone) {
  std::string bytes;
  AppendFrame(1, std::string(kMostPayload, 'x'), &bytes);
  EXPECT_TRUE(CutFrame(bytes).has_value());
  bytes[0] = 1;  // one more
  bytes += "y";
  EXPECT_FALSE(CutFrame(bytes).has_value());
}

TEST(JournalFrame, AChangedByteShows) {
  std::string bytes;
  AppendFrame(1, "abc", &bytes);
  for (size_t at = 4; at < bytes.size(); ++at) {
    std::string changed = bytes;
    changed[at] ^= 1;
    const auto frame = CutFrame(changed);
    ASSERT_TRUE(frame.has_value());
    EXPECT_FALSE(frame->IsCorrect()) << at;
  }
}

}  // namespace
}  // namespace dtrain::journal
