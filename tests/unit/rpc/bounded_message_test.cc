// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/bounded_message.h"

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <gtest/gtest.h>

#include <string>

#include "dtrain/v1/agent.pb.h"

namespace dtrain::rpc {
namespace {

constexpr size_t kMost = 1 << 20;

absl::StatusOr<size_t> Size(const std::string& bytes, size_t most = kMost) {
  google::protobuf::io::ArrayInputStream in(bytes.data(), static_cast<int>(bytes.size()));
  return ParsedSize(*v1::JobRequest::descriptor(), in, most);
}

std::string Field(int number, const std::string& bytes) {
  std::string out(1, static_cast<char>(number << 3 | 2));
  for (size_t left = bytes.size();; left >>= 7) {
    out.push_back(static_cast<char>(left > 127 ? left | 128 : left));
    if (left <= 127) break;
  }
  return out + bytes;
}

std::string Times(size_t n, const std::string& text) {
  std::string out;
  while (n-- > 0) out += text;
  return out;
}

TEST(ParsedSizeTest, IsAboutWhatAMessageOccupies) {
  v1::JobRequest request;
  v1::JobPart& part = *request.mutable_start();
  for (int i = 0; i < 1000; ++i) {
    part.add_workers()->add_gpu_uuids(std::string(100, 'x'));
    part.mutable_workers(i)->add_own_gpus(7);
    part.add_programs()->add_argv("word");
  }
  const auto size = Size(request.SerializeAsString());
  ASSERT_TRUE(size.ok()) << size.status();
  const size_t real = request.SpaceUsedLong();
  EXPECT_GT(*size, real * 2 / 3);
  EXPECT_LT(*size, real * 2);
}

TEST(ParsedSizeTest, EmptyPartsCount) {
  const size_t count = 10'000;
  for (const std::string& part : {Field(13, ""), Field(8, ""), Field(10, ""), Field(12, "")}) {
    const auto size = Size(Field(4, Times(count, part)));
    ASSERT_TRUE(size.ok()) << size.status();
    EXPECT_GT(*size, 40 * count);
  }
}

TEST(ParsedSizeTest, SoDoNumbersAndWhatIsNotKnown) {
  const std::string packed = Field(4, Field(13, Field(10, std::string(1000, 1))));
  EXPECT_GT(*Size(packed), 4000u);
  EXPECT_GE(*Size(Times(1000, "\xf8\x07\x01")), 16'000u);
}

TEST(ParsedSizeTest, CountsNoFurtherThanItMust) {
  const auto size = Size(Field(4, Times(1'000'000, Field(13, ""))));
  ASSERT_TRUE(size.ok()) << size.status();
  EXPECT_GT(*size, kMost);
  EXPECT_LT(*size, kMost + 1000);
}

TEST(ParsedSizeTest, WhatIsNoMessageIsRefused) {
  for (const std::string& bytes :
       {std::string("\x0b"), std::string("\x0c"), std::string("\x22\x05"), std::string("\x07"),
        std::string("\xff\xff\xff"), Field(4, "\x0a\x7f")}) {
    EXPECT_EQ(Size(bytes).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(ParseTest, BytesThatSomebodyElseHasCounted) {
  v1::JobRequest request, parsed;
  request.mutable_start()->set_job_id("job");
  ASSERT_TRUE(Parse(absl::string_view(request.SerializeAsString()), &parsed).ok());
  EXPECT_EQ(parsed.start().job_id(), "job");
  EXPECT_TRUE(absl::IsInvalidArgument(Parse(absl::string_view("\xff\xff"), &parsed)));
  for (int i = 0; i < 1000; ++i) request.mutable_start()->add_workers();
  const std::string many = request.SerializeAsString();
  EXPECT_TRUE(Parse(absl::string_view(many), &parsed).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Parse(absl::string_view(many), &parsed, 10'000)));
}

}  // namespace
}  // namespace dtrain::rpc
