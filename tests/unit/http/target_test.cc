// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/http/message.h"

namespace dtrain::http {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

TEST(TargetTest, IsAPathWithAQuery) {
  auto target = ParseTarget("/v1/jobs/a%20b/log?stream=stderr&offset=7&follow");
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_EQ(target->path, "/v1/jobs/a b/log");
  EXPECT_THAT(target->query,
              ElementsAre(Pair("follow", ""), Pair("offset", "7"), Pair("stream", "stderr")));
  target = ParseTarget("/");
  ASSERT_TRUE(target.ok());
  EXPECT_EQ(target->path, "/");
  EXPECT_THAT(target->query, IsEmpty());
}

// I14
TEST(TargetTest, NeitherClimbsNorHidesAnything) {
  for (const char* text : {"", "*", "v1/jobs", "http://evil.example/v1", "/v1/../etc/shadow", "/..",
                           "/v1/%2e%2e/x", "/v1/%2E./x", "/./x", "/a%00b", "/a%0db", "/a%7fb", "/%",
                           "/%4", "/%zz", "/a?b=%", "/a?b=%0a", "/a?b=1&b=2"}) {
    EXPECT_FALSE(ParseTarget(text).ok()) << text;
  }
  EXPECT_FALSE(ParseTarget(std::string("/a\0b", 4)).ok());
  EXPECT_TRUE(ParseTarget("/v1/...").ok());
}

TEST(ErrorResponseTest, IsJsonWhateverTheText) {
  const Response response = ErrorResponse(404, "no \"x\"\n\xff");
  EXPECT_EQ(response.status, 404);
  EXPECT_THAT(response.body, HasSubstr(R"({"error":"no \"x\"\n)"));
}

}  // namespace
}  // namespace dtrain::http
