// SPDX-License-Identifier: Apache-2.0
// Frames as gRPC's bytes.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/link/frame.h"
#include "common/rpc/rpc_carrier.h"

namespace dtrain::rpc {
namespace {

using link::Frame;
using link::SharedBytes;

TEST(RpcFrameTest, APayloadIsNotCopiedAndHeldUntilItIsSent) {
  auto owner = std::make_shared<const std::string>(100'000, 'x');
  std::weak_ptr<const std::string> watch = owner;
  Frame frame;
  frame.payload = SharedBytes(owner, *owner, owner->size()).Sub(10, 50'000);
  frame.header.size = 50'000;
  const char* const begin = frame.payload.view().data();
  owner.reset();
  grpc::ByteBuffer bytes = ToBytes(frame);
  frame = Frame();
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(bytes.Dump(&slices).ok());
  ASSERT_EQ(slices.size(), 2u);
  EXPECT_EQ(slices[0].size(), link::kHeaderBytes);
  EXPECT_EQ(reinterpret_cast<const char*>(slices[1].begin()), begin);
  slices.clear();
  EXPECT_FALSE(watch.expired());
  bytes.Clear();
  EXPECT_TRUE(watch.expired());
}

TEST(RpcFrameTest, WhatIsWrittenIsRead) {
  for (size_t size : {size_t{0}, size_t{1}, size_t{50'000}, link::kMostPayload}) {
    Frame frame;
    frame.payload = SharedBytes(std::string(size, 'x'));
    frame.header.size = static_cast<uint32_t>(size);
    frame.header.keep = true;
    frame.header.sequence = 7;
    frame.header.ack = 9;
    auto read = ToFrame(ToBytes(frame));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->header.sequence, 7u);
    EXPECT_EQ(read->header.ack, 9u);
    EXPECT_TRUE(read->payload.view() == frame.payload.view());
  }
}

TEST(RpcFrameTest, OtherBytesAreRefused) {
  EXPECT_FALSE(ToFrame(grpc::ByteBuffer()).ok());
  for (size_t size : {size_t{0}, size_t{1}, size_t{23}, size_t{100}, size_t{2} << 20}) {
    const grpc::Slice slice(std::string(size, 'x'));
    EXPECT_FALSE(ToFrame(grpc::ByteBuffer(&slice, 1)).ok()) << size;
  }
}

}  // namespace
}  // namespace dtrain::rpc
