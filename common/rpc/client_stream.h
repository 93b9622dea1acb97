// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>

#include <deque>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/loop/loop.h"
#include "common/rpc/bounded_message.h"
#include "common/rpc/channel.h"

// Client ends of streaming calls, for use on the loop thread. gRPC's threads only move a message
// and post it. Destroying an object cancels its call; no callback comes after that.
namespace dtrain::rpc {

// A bidirectional stream. Messages are sent in order; received ones come one by one. Of
// bytes, they are what is sent and received.
template <typename Out, typename In>
class ClientStream {
 public:
  using OnMessage = absl::AnyInvocable<void(In)>;
  using OnClosed = absl::AnyInvocable<void(absl::Status)>;
  // `method`: "/dtrain.v1.Agent/Session".
  ClientStream(loop::Loop& loop, const std::shared_ptr<grpc::Channel>& channel,
               const std::string& method, OnMessage on_message, OnClosed on_closed)
      : call_(new Call(loop, std::move(on_message), std::move(on_closed))) {
    grpc::GenericStub(channel).PrepareBidiStreamingCall(&call_->context, method, {}, call_);
    call_->Begin();
  }
  ~ClientStream() { call_->Abandon(); }
  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;

  void Send(const Out& message) { call_->Send(Serialize(message)); }
  // Nothing more will be sent; the peer sees the end after what is queued.
  void SendEnd() { call_->SendEnd(); }

 private:
  // Deletes itself on the loop when gRPC is done with it. All fields belong to the loop thread;
  // `in` and the front of `queue` are lent to gRPC while a read or write is on.
  struct Call final : grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
    Call(loop::Loop& l, OnMessage m, OnClosed c)
        : loop(l), on_message(std::move(m)), on_closed(std::move(c)) {}

    void Begin() {
      this->AddHold();  // the loop starts operations from outside the reactor
      this->StartRead(&in);
      this->StartCall();
    }
    void Send(grpc::ByteBuffer message) {
      DTRAIN_ON_THREAD(loop);
      if (ended || finishing) return;
      queue.push_back(std::move(message));
      if (queue.size() == 1) this->StartWrite(&queue.front());
    }
    void SendEnd() {
      if (std::exchange(ended, true) || finishing) return;
      if (queue.empty()) this->StartWritesDone();
    }
    void Abandon() {
      on_message = nullptr;
      on_closed = nullptr;
      if (gone) {
        delete this;
      } else {
        abandoned = true;
        context.TryCancel();
      }
    }
    // Messages are parsed on this thread, one at a time.
    void OnReadDone(bool ok) override {
      In message;
      absl::Status parsed;
      if constexpr (std::is_same_v<In, grpc::ByteBuffer>) {
        if (ok) message.Swap(&in);
      } else if (ok) {
        parsed = Parse(in, kMostToClient, &message, 2 * kMostParsed);
      }
      in.Clear();
      loop.Post([this, ok, parsed = std::move(parsed), message = std::move(message)]() mutable {
        if (!parsed.ok()) {
          nonsense = std::move(parsed);
          context.TryCancel();
        }
        AfterRead(ok && nonsense.ok(), std::move(message));
      });
    }
    void OnWriteDone(bool ok) override {
      loop.Post([this, ok] { AfterWrite(ok); });
    }
    void OnDone(const grpc::Status& status) override {
      loop.Post([this, status] { AfterDone(status); });
    }
    void AfterRead(bool ok, In message) {
      if (!ok) {
        // No read or write is started from here on, so gRPC may finish the call.
        finishing = true;
        this->RemoveHold();
        return;
      }
      this->StartRead(&in);
      if (on_message) on_message(std::move(message));
    }
    void AfterWrite(bool ok) {
      queue.pop_front();
      if (!ok || finishing) return;
      if (!queue.empty()) {
        this->StartWrite(&queue.front());
      } else if (ended) {
        this->StartWritesDone();
      }
    }
    void AfterDone(const grpc::Status& status) {
      gone = true;
      if (abandoned) {
        delete this;
        return;
      }
      if (on_closed) {
        std::exchange(on_closed, nullptr)(nonsense.ok() ? FromGrpc(status) : nonsense);
      }
    }

    loop::Loop& loop;
    grpc::ClientContext context;
    OnMessage on_message;
    OnClosed on_closed;
    grpc::ByteBuffer in;
    absl::Status nonsense;  // what the server sent was no message
    std::deque<grpc::ByteBuffer> queue;
    bool ended = false;
    bool finishing = false;
    bool abandoned = false;
    bool gone = false;
  };
  Call* call_;
};

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
