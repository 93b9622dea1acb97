// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/worker_error.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dtrain::report {
namespace {

constexpr char kTraceback[] =
    "Traceback (most recent call last):\n"
    "  File \"/x/errors/__init__.py\", line 346, in wrapper\n"
    "    return f(*args, **kwargs)\n"
    "  File \"train.py\", line 9, in main\n"
    "    raise ValueError(\"boom\")\n"
    "ValueError: boom\n";

TEST(WorkerErrorTest, ReadsWhatRecordWrites) {
  const auto error = ParseErrorFile(
      R"({"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback\n x",)"
      R"( "timestamp": "1795611600"}}})");
  ASSERT_TRUE(error.ok()) << error.status();
  EXPECT_EQ(error->message, "ValueError: boom");
  EXPECT_EQ(error->traceback, "Traceback\n x");
  EXPECT_EQ(error->unix_seconds, 1795611600);
}

// Of a torchrun within the worker, which passes its own worker's error on.
TEST(WorkerErrorTest, ReadsWhatAParentPassedOn) {
  const auto error = ParseErrorFile(
      R"({"message": {"message": "E: b", "errorCode": 7, "extraInfo": {"timestamp": "5"}}})");
  ASSERT_TRUE(error.ok()) << error.status();
  EXPECT_EQ(error->message, "E: b");
  EXPECT_EQ(error->traceback, "");
  EXPECT_EQ(error->unix_seconds, 5);
}

TEST(WorkerErrorTest, ReadsThePlainForm) {
  const auto error = ParseErrorFile(R"({"message": "it broke", "timestamp": "12"})");
  ASSERT_TRUE(error.ok()) << error.status();
  EXPECT_EQ(error->message, "it broke");
  EXPECT_EQ(error->unix_seconds, 12);
}

TEST(WorkerErrorTest, WrongTypesAreLeftOut) {
  for (const char* text : {R"({"message": {"message": "m", "extraInfo": 7}})",
                           R"({"message": {"message": "m", "extraInfo": [1]}})",
                           R"({"message": {"message": "m", "extraInfo": {"py_callstack": [],)"
                           R"( "timestamp": "soon"}}})",
                           R"({"message": "m", "timestamp": {"x": 1}})",
                           R"({"message": "m", "timestamp": 1.5e300})"}) {
    const auto error = ParseErrorFile(text);
    ASSERT_TRUE(error.ok()) << text << error.status();
    EXPECT_EQ(error->message, "m") << text;
    EXPECT_EQ(error->traceback, "") << text;
    EXPECT_EQ(error->unix_seconds, 0) << text;
  }
}

TEST(WorkerErrorTest, WhatHasNoMessageIsAnError) {
  for (const std::string& text :
       {std::string(""), std::string("{"), std::string("[]"), std::string("7"), std::string("null"),
        std::string(R"({"message": 7})"), std::string(R"({"message": null})"),
        std::string(R"({"message": []})"), std::string(R"({"message": {}})"),
        std::string(R"({"message": ""})"), std::string(R"({"message": {"message": {}}})"),
        std::string(R"({"massage": "m"})"), std::string(R"({"message": "m")"),
        std::string("{\"message\": \"\xff\xfe\"}"), std::string(64 << 10, '\0')}) {
    EXPECT_FALSE(ParseErrorFile(text).ok()) << text;
  }
}

TEST(WorkerErrorTest, DeepNestingIsNoHarm) {
  EXPECT_FALSE(ParseErrorFile(std::string(64 << 10, '[')).ok());
  const std::string half(32 << 10, '[');
  const std::string deep = half + std::string(32 << 10, ']');
  EXPECT_FALSE(ParseErrorFile(deep).ok());
  const auto error = ParseErrorFile(absl::StrCat(R"({"message": "m", "x": )", deep, "}"));
  ASSERT_TRUE(error.ok()) << error.status();
  EXPECT_EQ(error->message, "m");
}

// Python prints the same with the frames that called `main`, and what comes after may follow.
TEST(WorkerErrorTest, ATracebackIsShownOnce) {
  const std::string printed = absl::StrCat(
      "Traceback (most recent call last):\n  File \"train.py\", line 12, in <module>\n    main()\n",
      std::string(kTraceback).substr(35), "[W] leaving\r\n");
  EXPECT_TRUE(ShowsTraceback(printed, kTraceback));
  EXPECT_TRUE(ShowsTraceback(printed, ""));
  EXPECT_FALSE(ShowsTraceback("", kTraceback));
  EXPECT_FALSE(ShowsTraceback("ValueError: boom\n", kTraceback));
  EXPECT_FALSE(ShowsTraceback("terminate called\nAborted\n", kTraceback));
}

TEST(WorkerErrorTest, TheLastTenLinesAreEnough) {
  std::string traceback = "Traceback (most recent call last):\n";
  std::string tail;
  for (int i = 0; i < 30; ++i) {
    const std::string line = absl::StrFormat("  frame %d\n", i);
    traceback += line;
    if (i >= 20) tail += line;
  }
  EXPECT_TRUE(ShowsTraceback(tail, traceback));
  EXPECT_FALSE(ShowsTraceback(tail.substr(tail.find('\n') + 1), traceback));
}

}  // namespace
}  // namespace dtrain::report
