// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <string>

#include "common/link/shared_bytes.h"

// Bytes that go to gRPC without a copy: it holds them until they are sent. Any thread.
namespace dtrain::rpc {

inline grpc::Slice ToSlice(const link::SharedBytes& bytes) {
  auto* owner = new link::SharedBytes(bytes);
  return grpc::Slice(
      const_cast<char*>(owner->view().data()), owner->size(),
      [](void* held) { delete static_cast<link::SharedBytes*>(held); }, owner);
}

// `message`, whose field `number`, of type bytes, is not set, with that field.
template <typename Message>
grpc::ByteBuffer SerializeWith(const Message& message, int number, const link::SharedBytes& bytes) {
  constexpr uint32_t kLengthDelimited = 2;
  std::string head = message.SerializeAsString();
  uint8_t field[10];
  uint8_t* end = google::protobuf::io::CodedOutputStream::WriteVarint32ToArray(
      static_cast<uint32_t>(number) << 3 | kLengthDelimited, field);
  end = google::protobuf::io::CodedOutputStream::WriteVarint32ToArray(
      static_cast<uint32_t>(bytes.size()), end);
  head.append(reinterpret_cast<const char*>(field), static_cast<size_t>(end - field));
  const grpc::Slice slices[2] = {grpc::Slice(head), ToSlice(bytes)};
  return grpc::ByteBuffer(slices, 2);
}

}  // namespace dtrain::rpc
