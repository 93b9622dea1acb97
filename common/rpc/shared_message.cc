// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/shared_message.h"

#include <cstdint>

#include "common/base/check.h"

namespace dtrain::rpc {
namespace {

grpc::Slice BytesOf(const google::protobuf::Message& message) {
  // It fails for messages of 2 GiB, which nobody here has.
  const size_t size = message.ByteSizeLong();
  grpc::Slice bytes(size);
  DTRAIN_CHECK(
      message.SerializeToArray(const_cast<uint8_t*>(bytes.begin()), static_cast<int>(size)));
  return bytes;
}

}  // namespace

SharedMessage::SharedMessage(const google::protobuf::Message& message)
    : slices_({BytesOf(message)}) {}

size_t SharedMessage::size() const {
  size_t size = 0;
  for (const grpc::Slice& slice : slices_) size += slice.size();
  return size;
}

// Protobuf's encoding of two messages, one behind the other, is that of the two merged.
SharedMessage SharedMessage::And(const google::protobuf::Message& more) const {
  SharedMessage both = *this;
  both.slices_.push_back(BytesOf(more));
  return both;
}

}  // namespace dtrain::rpc
