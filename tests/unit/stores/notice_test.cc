// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "agent/stores/notifier.h"
#include "common/manifest/sha256.h"

namespace dtrain::stores {
namespace {

std::string FirstBytes() {
  std::string key;
  for (char c = 0; c < 32; ++c) key += c;
  return key;
}

std::string AnswerOf(const std::string& key, const std::string& body) {
  std::string size(4, '\0');
  for (int i = 0; i < 4; ++i)
    size[static_cast<size_t>(i)] = static_cast<char>(body.size() >> 8 * i);
  return absl::StrCat(manifest::HmacSha256(key, body), size, body);
}

// Python's pickle reads it as HostsUpdatedRequest(timestamp=1700000000, res=2).
TEST(NoticeTest, IsWhatHorovodWouldHaveSent) {
  const std::string bytes = NoticeBytes(FirstBytes(), 1700000000, 2);
  ASSERT_EQ(bytes.size(), kNoticeHead + 89);
  EXPECT_EQ(absl::BytesToHexString(bytes.substr(0, 32)),
            "abbd0b85f80e4c5c3b47f558adbe4fb61d0a3b8fa6403362ac53aa353277a81b");
  EXPECT_EQ(absl::BytesToHexString(bytes.substr(32, 4)), "59000000");
  EXPECT_EQ(
      absl::CEscape(bytes.substr(36)),
      "\\200\\002chorovod.runner.elastic.worker\\nHostsUpdatedRequest\\n)\\201}(X\\t\\000\\000"
      "\\000timestampJ\\000\\361SeX\\003\\000\\000\\000resK\\002ub.");
}

TEST(NoticeTest, NoTwoAreTheSame) {
  const std::string one = NoticeBytes("key", 1, 2);
  EXPECT_NE(one, NoticeBytes("key", 2, 2));
  EXPECT_NE(one, NoticeBytes("key", 1, 3));
  EXPECT_NE(one.substr(0, 32), NoticeBytes("kez", 1, 2).substr(0, 32));
}

TEST(NoticeTest, AnAnswerProvesThatTheKeyIsKnown) {
  const std::string answer = AnswerOf("key", "what comes back");
  EXPECT_TRUE(IsAnswer("key", answer));
  EXPECT_TRUE(IsAnswer("key", AnswerOf("key", "")));
  EXPECT_FALSE(IsAnswer("kez", answer));
  for (size_t i = 0; i < answer.size(); ++i) {
    std::string changed = answer;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(IsAnswer("key", changed)) << i;
    EXPECT_FALSE(IsAnswer("key", answer.substr(0, i))) << i;
  }
  EXPECT_FALSE(IsAnswer("key", answer + "x"));
}

TEST(NoticeTest, AnAnswerIsNotLongerThanItsLimit) {
  const std::string longest = AnswerOf("key", std::string(kMostAnswer, 'a'));
  EXPECT_TRUE(IsAnswer("key", longest));
  EXPECT_EQ(AnswerSize(longest.substr(0, kNoticeHead)), kMostAnswer);
  const std::string longer = AnswerOf("key", std::string(kMostAnswer + 1, 'a'));
  EXPECT_FALSE(IsAnswer("key", longer));
  EXPECT_EQ(AnswerSize(longer.substr(0, kNoticeHead)), std::nullopt);
  EXPECT_EQ(AnswerSize(longer.substr(0, kNoticeHead - 1)), std::nullopt);
  EXPECT_EQ(AnswerSize(std::string(kNoticeHead, '\xff')), std::nullopt);
}

}  // namespace
}  // namespace dtrain::stores
