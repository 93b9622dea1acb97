// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "agent/shepherd/pmi2_requests.h"

namespace dtrain::shepherd {
namespace {

using ::testing::HasSubstr;

std::string WithHeader(absl::string_view body) {
  return absl::StrFormat("%6d%s", body.size(), body);
}

TEST(Pmi2FrameTest, ReadsCommandAndArguments) {
  auto request = ParsePmi2Frame(WithHeader("cmd=kvs-put;thrid=0x1f;key=a_B-9;value=x = y\n;"));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->command, "kvs-put");
  EXPECT_EQ(*request->Find("thrid"), "0x1f");
  EXPECT_EQ(*request->Find("key"), "a_B-9");
  EXPECT_EQ(*request->Find("value"), "x = y\n");  // split at the first '='
  EXPECT_EQ(request->Find("nothing"), nullptr);
}

TEST(Pmi2FrameTest, ADoubledSemicolonIsOneOfTheValue) {
  auto request = ParsePmi2Frame(WithHeader("cmd=x;a=;;b;;c;;;d=;;;;;e=;f;g=;;;"));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(*request->Find("a"), ";b;c;");
  EXPECT_EQ(*request->Find("d"), ";;");
  EXPECT_EQ(*request->Find("e"), "");
  EXPECT_EQ(*request->Find("f"), "");  // MPICH's client leaves a '=' without a value out
  EXPECT_EQ(*request->Find("g"), ";");
}

// MPICH doubles no ';' in it.
TEST(Pmi2FrameTest, AnAbortSaysWhyInAnyWords) {
  for (absl::string_view why :
       {"message=a; b; ;", "message=a = b\n;", "msg=;", "msg", "message=x"}) {
    auto request = ParsePmi2Frame(WithHeader(absl::StrCat("cmd=abort;exitcode=42;", why)));
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_EQ(request->command, "abort");
    EXPECT_EQ(request->FindInt("exitcode"), 42);
  }
  EXPECT_FALSE(ParsePmi2Frame(WithHeader("cmd=kvs-put;message=a; b;")).ok());
}

TEST(Pmi2FrameTest, ValuesMayHoldAnyByte) {
  std::string value;
  for (int c = 0; c < 256; ++c) value += static_cast<char>(c);
  const std::string frame = FormatPmi2Frame("kvs-put", {{"key", "k"}, {"value", value}});
  EXPECT_EQ(Pmi2FrameSize(frame), frame.size());
  auto request = ParsePmi2Frame(frame);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(*request->Find("value"), value);
}

TEST(Pmi2FrameTest, TheHeaderIsPaddedOnEitherSide) {
  for (absl::string_view header : {"     6", "6     ", "  6   ", "000006"}) {
    const std::string frame = absl::StrCat(header, "cmd=a;");
    EXPECT_EQ(Pmi2FrameSize(frame), frame.size()) << header;
    EXPECT_TRUE(ParsePmi2Frame(frame).ok()) << header;
  }
}

TEST(Pmi2FrameTest, FindsTheFirstFrameOfWhatHasCome) {
  const std::string frame = WithHeader("cmd=finalize;");
  EXPECT_EQ(Pmi2FrameSize(frame + frame), frame.size());
  for (size_t n = 0; n < frame.size(); ++n) EXPECT_EQ(Pmi2FrameSize(frame.substr(0, n)), 0u) << n;
}

// Nobody waits for the bytes that it announces.
TEST(Pmi2FrameTest, AHeaderThatIsNoLengthIsTakenAloneAndRefused) {
  for (const std::string& header :
       {std::string("cmd=in"), std::string("    -1"), std::string("    +6"), std::string("999999"),
        std::string(" 65537"), std::string("     0"), std::string("      "), std::string("1 2   "),
        std::string("0x10  "), std::string("6\0\0\0\0\0", 6), std::string("     6\n").substr(1)}) {
    EXPECT_EQ(Pmi2FrameSize(header + "cmd=a;"), kPmi2HeaderSize) << header;
    EXPECT_FALSE(ParsePmi2Frame(header).ok()) << header;
  }
}

TEST(Pmi2FrameTest, RefusesWhatIsNoMessage) {
  for (absl::string_view body :
       {"x", ";", "cmd", "cmd=", "cmd=;", "cmd=a", "cmd=a;b", "cmd=a;b=c", "cmd=a;b=c;;",
        "key=1;cmd=a;", "cmd=a;=b;", "cmd=a;b c=d;", "cmd=a;;b=c", "mcmd=spawn;", "GET / HTTP/1.1;",
        "cmd=a;\n", "cmd=a;b\n=c;"}) {
    EXPECT_FALSE(ParsePmi2Frame(WithHeader(body)).ok()) << body;
  }
  const std::string key(kPmiKeyMax, 'k');
  EXPECT_TRUE(ParsePmi2Frame(WithHeader(absl::StrCat("cmd=a;", key, "=v;"))).ok());
  EXPECT_FALSE(ParsePmi2Frame(WithHeader(absl::StrCat("cmd=a;", key, "k=v;"))).ok());
}

TEST(Pmi2FrameTest, TheLengthMustBeThatOfTheBody) {
  for (absl::string_view frame : {"", "     6", "     6cmd=a", "     6cmd=ab;", "     5cmd=a;"}) {
    EXPECT_FALSE(ParsePmi2Frame(frame).ok()) << frame;
  }
}

TEST(Pmi2FrameTest, AcceptsTheLongestFrame) {
  std::string body = "cmd=spawn;";
  for (int i = 0; body.size() < kPmi2BodyMax - 20; ++i) absl::StrAppend(&body, "argv", i % 9, "=;");
  body += "last=";
  body += std::string(kPmi2BodyMax - 1 - body.size(), 'x') + ";";
  ASSERT_EQ(body.size(), kPmi2BodyMax);
  EXPECT_EQ(Pmi2FrameSize(WithHeader(body)), kPmi2HeaderSize + kPmi2BodyMax);
  auto request = ParsePmi2Frame(WithHeader(body));
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_GT(request->arguments.size(), 5000u);
}

TEST(Pmi2FrameTest, ErrorsShowTheFrameEscaped) {
  EXPECT_THAT(std::string(ParsePmi2Frame("\x1b[2J\n\n").status().message()),
              HasSubstr("\"\\x1b[2J"));
}

TEST(Pmi2FrameTest, FormatsInTheGivenOrder) {
  EXPECT_EQ(FormatPmi2Frame("kvs-get-response", {{"rc", "0"}, {"value", "a;b"}}),
            "    37cmd=kvs-get-response;rc=0;value=a;;b;");
  EXPECT_EQ(FormatPmi2Frame("x", {}), "     6cmd=x;");
}

}  // namespace
}  // namespace dtrain::shepherd
