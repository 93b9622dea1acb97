// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/rpc/frame_guard.h"

// Messages between their bytes and their objects. Servers take bytes from gRPC and parse them here:
// two bytes may ask for an object of hundreds. Any thread.
namespace dtrain::rpc {

// The longest question of a call with one: names and positions.
inline constexpr size_t kMostQuestion = 64 << 10;
// What the objects of one message may occupy. The longest fence with keys and values of a few words
// has half of it.
inline constexpr size_t kMostParsed = 128 << 20;
// What an agent says to its launcher: the values of a fence that one node has put in.
inline constexpr size_t kMostToClient = 64 << 20;

// About how many bytes the objects of a message of `type` will occupy beside `type` itself; stops
// counting above `most`. INVALID_ARGUMENT: it cannot be parsed.
absl::StatusOr<size_t> ParsedSize(const google::protobuf::Descriptor& type,
                                  google::protobuf::io::ZeroCopyInputStream& bytes, size_t most);

// RESOURCE_EXHAUSTED: it has more than `most_bytes`, or its objects would have more than
// `most_parsed`. INVALID_ARGUMENT: it is not such a message.
absl::Status Parse(grpc::ByteBuffer& bytes, size_t most_bytes, google::protobuf::Message* out,
                   size_t most_parsed = kMostParsed);

// Of bytes that somebody else has counted.
absl::Status Parse(absl::string_view bytes, google::protobuf::Message* out,
                   size_t most_parsed = kMostParsed);

template <typename Message>
grpc::ByteBuffer Serialize(const Message& message) {
  grpc::ByteBuffer out;
  bool own = false;
  // It fails for messages of 2 GiB, which nobody here has.
  DTRAIN_CHECK(grpc::SerializationTraits<Message>::Serialize(message, &out, &own).ok());
  return out;
}

}  // namespace dtrain::rpc
