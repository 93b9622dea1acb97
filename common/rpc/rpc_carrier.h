// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/link/carrier.h"
#include "common/link/frame.h"
#include "common/loop/loop.h"
#include "common/rpc/frame_guard.h"

// Both ends of a call that begins with one message in each direction, its greeting, and goes on
// with frames of common/link, one each, in raw bytes: what is sent is not copied, and nothing is
// parsed. One frame at a time is with gRPC; the next is asked for when that was taken, so urgent
// ones wait for no more than gRPC's own buffer. Loop thread.
namespace dtrain::rpc {

// A view of the frame's payload goes to gRPC, which holds the bytes until they are sent.
grpc::ByteBuffer ToBytes(const link::Frame& frame);
// DATA_LOSS as link::DecodeFrame. The payload is a view of what gRPC has received.
absl::StatusOr<link::Frame> ToFrame(const grpc::ByteBuffer& bytes);

// The other side's first message. Once.
using OnGreeting = absl::AnyInvocable<void(grpc::ByteBuffer&)>;

// The client's end. on_closed has the call's status. Destroying it cancels the call; no callback
// comes after that.
class ClientCarrier {
 public:
  // `method`: "/dtrain.v1.Agent/Session".
  ClientCarrier(loop::Loop& loop, const std::shared_ptr<grpc::Channel>& channel,
                const std::string& method, const grpc::ByteBuffer& greeting, OnGreeting on_greeting,
                link::CarrierHandlers handlers);
  ~ClientCarrier();
  ClientCarrier(const ClientCarrier&) = delete;
  ClientCarrier& operator=(const ClientCarrier&) = delete;

  void Pump();

 private:
  struct Call;
  Call* call_;
};

// The server's end, of a raw method. on_closed: OK when the client has ended its side or is gone.
// The handle may be kept as long as one likes: after the call ended it does nothing.
class ServerCarrier {
 public:
  using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
  using Accept = absl::AnyInvocable<void(std::shared_ptr<ServerCarrier>)>;
  // For the service method. `accept` is called on the loop.
  static Reactor* New(loop::Loop& loop, Accept accept);

  // Begins to read; once. No frame may come before Greet has answered.
  void Start(OnGreeting on_greeting);
  // Who hears of frames and of the end from now on.
  void Listen(link::CarrierHandlers handlers);
  // Answers the greeting; once. From now on frames are asked for.
  void Greet(const grpc::ByteBuffer& greeting);
  void Pump();
  // After the message that is being sent, if one is. No frame is asked for any more.
  void Finish(absl::Status status);
  bool over() const { return call_ == nullptr; }
  // Called on the loop when the call is over: all that was sent, the status included, is with the
  // transport, or the client is gone.
  void WhenOver(loop::Task task);

 private:
  struct Call;
  explicit ServerCarrier(Call* call) : call_(call) {}
  Call* call_;  // null after the call ended
};

}  // namespace dtrain::rpc
