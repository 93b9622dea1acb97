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

SharedMessage::SharedMessage(const google::protobuf::Message& message) : bytes_(BytesOf(message)) {}

// Protobuf's encoding of two messages, one behind the other, is that of the two merged.
grpc::ByteBuffer SharedMessage::With(const google::protobuf::Message& more) const {
  const grpc::Slice slices[] = {bytes_, BytesOf(more)};
  return {slices, 2};
}

}  // namespace dtrain::rpc
