// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/rpc/bounded_message.h"
#include "common/rpc/channel.h"
#include "common/rpc/tsan.h"

// Both ends of a call with one question and one answer, for use on the loop thread.
namespace dtrain::rpc {

// The server's end, of a raw method: its question is looked at before it is parsed. gRPC owns the
// reactor and makes it on a thread of its own; `accept` is called on the loop with a handle, which
// may be kept as long as one likes, and the question.
template <typename Out>
class ServerCall {
 public:
  // For the service method. `answer` is gRPC's, valid until Finish.
  template <typename In, typename Accept>
  static grpc::ServerUnaryReactor* New(loop::Loop& loop, const grpc::ByteBuffer& question,
                                       grpc::ByteBuffer* answer, Accept accept) {
    auto* call = new Call(loop, answer);
    std::shared_ptr<ServerCall> handle(new ServerCall(call));
    In in;
    grpc::ByteBuffer bytes(question);  // shares them
    if (absl::Status parsed = Parse(bytes, kMostQuestion, &in); !parsed.ok()) {
      handle->Finish(parsed);
      return call;
    }
    loop.Post([handle, accept, in = std::move(in)]() mutable { accept(handle, std::move(in)); });
    return call;
  }
  ServerCall(const ServerCall&) = delete;
  ServerCall& operator=(const ServerCall&) = delete;
  ~ServerCall() { Finish(absl::InternalError("nobody answered")); }

  // The first time; a client that has gone is no matter.
  void Finish(absl::StatusOr<Out> answer) {
    Call* call = std::exchange(call_, nullptr);
    if (call == nullptr) return;
    if (answer.ok()) *call->answer = Serialize(*answer);
    call->Finish(ToGrpc(answer.status()));
  }

 private:
  struct Call final : grpc::ServerUnaryReactor {
    Call(loop::Loop& l, grpc::ByteBuffer* a) : loop(l), answer(a) {}
    void OnDone() override {
      // Owned by the task: a loop that ends before it frees it, too.
      loop.Post([owned = std::unique_ptr<Call>(this)] {});
      CallbackEnds();
    }
    loop::Loop& loop;
    grpc::ByteBuffer* const answer;
  };
  explicit ServerCall(Call* call) : call_(call) {}
  Call* call_;  // null: it was answered
};

// The client's end. Destroying it cancels the call; no callback comes after that.
template <typename In, typename Out>
class ClientCall {
 public:
  using OnDone = absl::AnyInvocable<void(absl::StatusOr<Out>)>;
  // Starts the call: [&](auto* context, auto* request, auto* answer, auto* reactor) {
  // stub->async()->NodeStatus(context, request, answer, reactor); }. DEADLINE_EXCEEDED after
  // `patience`.
  template <typename StartCall>
  ClientCall(loop::Loop& loop, In request, Duration patience, StartCall start_call, OnDone on_done)
      : call_(new Call(loop, std::move(request), std::move(on_done))) {
    call_->context.set_deadline(std::chrono::system_clock::now() + patience);
    start_call(&call_->context, &call_->request, &call_->answer, call_);
    call_->StartCall();
  }
  ~ClientCall() { call_->Abandon(); }
  ClientCall(const ClientCall&) = delete;
  ClientCall& operator=(const ClientCall&) = delete;

 private:
  // Deletes itself on the loop when gRPC is done with it.
  struct Call final : grpc::ClientUnaryReactor {
    Call(loop::Loop& l, In r, ClientCall::OnDone d)
        : loop(l), request(std::move(r)), on_done(std::move(d)) {}
    void Abandon() {
      on_done = nullptr;
      if (gone) {
        delete this;
      } else {
        abandoned = true;
        context.TryCancel();
      }
    }
    void OnDone(const grpc::Status& status) override {
      loop.Post([owned = std::unique_ptr<Call>(this), status]() mutable {
        if (owned->abandoned) return;
        Call& call = *owned.release();  // its handle's again
        call.gone = true;
        auto on_done = std::exchange(call.on_done, nullptr);
        if (status.ok()) {
          on_done(std::move(call.answer));
        } else {
          on_done(FromGrpc(status));
        }
      });
    }
    loop::Loop& loop;
    grpc::ClientContext context;
    const In request;
    Out answer;
    ClientCall::OnDone on_done;
    bool abandoned = false;
    bool gone = false;
  };
  Call* call_;
};

}  // namespace dtrain::rpc
