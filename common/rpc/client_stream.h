// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/loop/loop.h"
#include "common/rpc/bounded_message.h"
#include "common/rpc/channel.h"

// The client's end of a call that streams from its server, for use on the loop thread. gRPC's
// threads only move a message and post it. Destroying an object cancels its call; no callback comes
// after that.
namespace dtrain::rpc {

// A stream of messages from the server, paced by the reader: the next one is only taken from the
// wire when Next is called, and until then gRPC's flow control holds the sender back.
template <typename In>
class ClientReader {
 public:
  using OnMessage = absl::AnyInvocable<void(In)>;
  using OnClosed = absl::AnyInvocable<void(absl::Status)>;
  template <typename StartCall>
  ClientReader(loop::Loop& loop, StartCall start_call, OnMessage on_message, OnClosed on_closed)
      : call_(new Call(loop, std::move(on_message), std::move(on_closed))) {
    start_call(&call_->context, call_);
    call_->AddHold();
    call_->StartRead(&call_->in);
    call_->StartCall();
  }
  ~ClientReader() { call_->Abandon(); }
  ClientReader(const ClientReader&) = delete;
  ClientReader& operator=(const ClientReader&) = delete;

  // Asks for the next message. The first is on its way already; call it once for each one after.
  void Next() { call_->Next(); }

 private:
  struct Call final : grpc::ClientReadReactor<In> {
    Call(loop::Loop& l, OnMessage m, OnClosed c)
        : loop(l), on_message(std::move(m)), on_closed(std::move(c)) {}
    void Next() {
      if (!finishing) this->StartRead(&in);
    }
    void Abandon() {
      on_message = nullptr;
      on_closed = nullptr;
      if (gone) {
        delete this;
        return;
      }
      abandoned = true;
      context.TryCancel();
      if (!reading && !finishing) EndHold();
    }
    void OnReadDone(bool ok) override {
      loop.Post([this, ok] {
        reading = false;
        if (!ok || abandoned) {
          if (!finishing) EndHold();
          return;
        }
        In message = std::move(in);
        in = In();
        on_message(std::move(message));
      });
    }
    void OnDone(const grpc::Status& status) override {
      loop.Post([this, status] {
        gone = true;
        if (abandoned) {
          delete this;
        } else if (on_closed) {
          std::exchange(on_closed, nullptr)(FromGrpc(status));
        }
      });
    }
    void StartRead(In* message) {
      reading = true;
      grpc::ClientReadReactor<In>::StartRead(message);
    }
    void EndHold() {
      finishing = true;
      this->RemoveHold();
    }
    loop::Loop& loop;
    grpc::ClientContext context;
    OnMessage on_message;
    OnClosed on_closed;
    In in;
    bool reading = false;
    bool finishing = false;
    bool abandoned = false;
    bool gone = false;
  };
  Call* call_;
};

}  // namespace dtrain::rpc
