// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/status/status.h"
#include "common/os/unique_fd.h"

// gRPC over a connected stream socket: both ends of one byte stream, however it came about.
namespace dtrain::rpc {

// Of the agent's service. A launcher refuses an agent that speaks another one before it starts
// anything.
inline constexpr uint32_t kProtocolVersion = 7;

// While there is one, gRPC stays ready. Without it gRPC shuts down with the last connection, which
// may take ten seconds, and the next one waits for that: on the loop, whose other peers hear
// nothing.
class Library {
 public:
  Library();
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
};

// The client's end. There is no reconnecting: when the stream ends, so does the channel.
std::shared_ptr<grpc::Channel> MakeChannel(os::UniqueFd stream);

// What gRPC may have in memory for the connections of one user: beyond it their idle ones are
// closed, then calls of theirs are ended.
class Quota {
 public:
  Quota();
  const grpc::ResourceQuota& get() const { return quota_; }

 private:
  grpc::ResourceQuota quota_;
};

// The server's end: a server without a listening port that serves `service` on this one stream.
// `service` must outlive it. `quota` may be null: then there is no limit.
class StreamServer {
 public:
  StreamServer(grpc::Service& service, os::UniqueFd stream, const Quota* quota = nullptr);
  ~StreamServer();
  StreamServer(const StreamServer&) = delete;
  StreamServer& operator=(const StreamServer&) = delete;

 private:
  std::unique_ptr<grpc::Server> server_;
};

// The codes are the same numbers.
absl::Status FromGrpc(const grpc::Status& status);
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace dtrain::rpc
