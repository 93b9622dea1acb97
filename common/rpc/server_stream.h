// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/loop/loop.h"
#include "common/rpc/bounded_message.h"
#include "common/rpc/channel.h"
#include "common/rpc/tsan.h"

// The server's end of a call that streams to its client, for use on the loop thread. gRPC owns the
// reactor and makes it on a thread of its own; the handler that the service gives is called on the
// loop with a handle, which may be kept as long as one likes: after the call ended it does nothing.
// It serves raw methods: what a message asks for is looked at before it is parsed.
namespace dtrain::rpc {

// A stream of messages to the client. At most one write at a time: the writer asks for the next
// piece when the last one was taken, so memory is bounded by the reader's pace.
template <typename Out>
class ServerWriter {
 public:
  // For the service method, with its question.
  template <typename In, typename Accept>
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* New(loop::Loop& loop,
                                                         const grpc::ByteBuffer& question,
                                                         Accept accept) {
    auto* call = new Call(loop);
    std::shared_ptr<ServerWriter> handle(new ServerWriter(call));
    call->handle = handle;
    In in;
    grpc::ByteBuffer bytes(question);  // shares them
    if (absl::Status parsed = Parse(bytes, kMostQuestion, &in); !parsed.ok()) {
      loop.Post([handle, parsed] { handle->Finish(parsed); });
      return call;
    }
    loop.Post([handle, accept, in = std::move(in)]() mutable { accept(handle, std::move(in)); });
    return call;
  }

  // `taken(ok)` on the loop when the message is with the transport; not ok: the client is gone.
  void Write(const Out& message, absl::AnyInvocable<void(bool ok)> taken) {
    WriteBytes(Serialize(message), std::move(taken));
  }
  // The same of a message that somebody else has serialized.
  void WriteBytes(grpc::ByteBuffer message, absl::AnyInvocable<void(bool ok)> taken) {
    // Also after OnCancel has finished the call: gRPC may have freed its end of it, and only the
    // news of that is still on its way to the loop.
    if (call_ == nullptr || call_->finished) {
      taken(false);
      return;
    }
    call_->out = std::move(message);
    call_->taken = std::move(taken);
    call_->StartWrite(&call_->out);
  }
  void Finish(absl::Status status) {
    if (call_ != nullptr && !std::exchange(call_->finished, true)) {
      call_->Finish(ToGrpc(status));
    }
  }
  bool gone() const { return call_ == nullptr; }

 private:
  struct Call final : grpc::ServerWriteReactor<grpc::ByteBuffer> {
    explicit Call(loop::Loop& l) : loop(l) {}
    void OnWriteDone(bool ok) override {
      loop.Post([this, ok] { std::exchange(taken, nullptr)(ok); });
    }
    void OnCancel() override {
      loop.Post([h = handle] { h->Finish(absl::CancelledError("cancelled by the client")); });
    }
    void OnDone() override {
      loop.Post([this] {
        handle->call_ = nullptr;
        delete this;
      });
      CallbackEnds();
    }
    loop::Loop& loop;
    std::shared_ptr<ServerWriter> handle;
    grpc::ByteBuffer out;
    absl::AnyInvocable<void(bool)> taken;
    bool finished = false;
  };
  explicit ServerWriter(Call* call) : call_(call) {}
  Call* call_;
};

}  // namespace dtrain::rpc
