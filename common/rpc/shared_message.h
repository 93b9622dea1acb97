// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <cstddef>

namespace dtrain::rpc {

// A message whose bytes exist once, however many streams send it and keep it to send it again. Any
// thread; a copy shares the bytes.
class SharedMessage {
 public:
  SharedMessage() = default;
  explicit SharedMessage(const google::protobuf::Message& message);

  size_t size() const { return bytes_.size(); }
  // The message with the fields of `more`, of the same type, which are this stream's alone. A field
  // that both have is as `more` has it; a repeated one has the elements of both.
  grpc::ByteBuffer With(const google::protobuf::Message& more) const;

 private:
  grpc::Slice bytes_;
};

}  // namespace dtrain::rpc
