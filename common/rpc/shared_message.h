// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <vector>

namespace dtrain::rpc {

// A message whose bytes exist once, however many streams send it and keep it to send it again. Any
// thread; a copy shares the bytes.
class SharedMessage {
 public:
  SharedMessage() = default;
  explicit SharedMessage(const google::protobuf::Message& message);

  size_t size() const;
  // The message merged with `more`, of the same type: a field that both have is as `more` has it, a
  // repeated one has the elements of both, one that is a message is merged likewise.
  SharedMessage And(const google::protobuf::Message& more) const;
  grpc::ByteBuffer Bytes() const { return {slices_.data(), slices_.size()}; }

 private:
  std::vector<grpc::Slice> slices_;
};

}  // namespace dtrain::rpc
