// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/loop/loop.h"
#include "common/rpc/bounded_message.h"
#include "common/rpc/channel.h"
#include "common/rpc/tsan.h"

// Server ends of streaming calls, for use on the loop thread. gRPC owns the reactor and makes it
// on a thread of its own; the handler that the service gives is called on the loop with a handle.
// The handle may be kept as long as one likes: after the call ended it does nothing. They serve
// raw methods: what a message asks for is looked at before it is parsed.
namespace dtrain::rpc {

// What may wait for the launchers of one user: the longest message of a shepherd, and as much
// again.
inline constexpr size_t kMostQueued = 128 << 20;

template <typename In, typename Out>
class ServerStream {
 public:
  using OnMessage = absl::AnyInvocable<void(In)>;
  using OnClosed = absl::AnyInvocable<void()>;  // the client ended its side, or is gone

  // For the service method. `accept` runs on the loop with the handle. `queued`: what may wait for
  // the client, of those who share it. A call that has more is cancelled, as its client does not
  // read.
  template <typename Accept>
  static grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* New(
      loop::Loop& loop, grpc::CallbackServerContext* context, std::shared_ptr<SharedLimit> queued,
      Accept accept) {
    auto* call = new Call(loop, context, std::move(queued));
    std::shared_ptr<ServerStream> handle(new ServerStream(call));
    call->handle = handle;
    loop.Post([handle, accept]() mutable { accept(handle); });
    return call;
  }

  // Begins to read, from `accept` or later. Again: what comes from now on goes to others.
  void Start(OnMessage on_message, OnClosed on_closed) {
    if (call_ == nullptr) return;
    call_->on_message = std::move(on_message);
    call_->on_closed = std::move(on_closed);
    if (!std::exchange(call_->started, true)) call_->StartRead(&call_->in);
  }
  void Send(const Out& message) {
    if (call_ != nullptr) call_->Send(message);
  }
  // After what is queued. The client sees `status`.
  void Finish(absl::Status status) {
    if (call_ != nullptr) call_->End(std::move(status));
  }
  bool over() const { return call_ == nullptr; }
  // Called on the loop when the call is over: all that was sent, the status included, is with the
  // transport, or the client is gone.
  void WhenOver(loop::Task task) {
    if (call_ == nullptr) {
      task();
    } else {
      call_->when_over = std::move(task);
    }
  }

 private:
  struct Call final : grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
    Call(loop::Loop& l, grpc::CallbackServerContext* c, std::shared_ptr<SharedLimit> q)
        : loop(l), context(c), queued(std::move(q)) {}
    ~Call() override { Forget(queue.size()); }
    void Send(const Out& message) {
      DTRAIN_ON_THREAD(loop);
      if (ending || broken) return;
      grpc::ByteBuffer bytes = Serialize(message);
      if (!queued->Add(bytes.Length())) {
        broken = true;
        log::Warn(absl::StrCat("ending a session whose launcher does not read: ", queued->most(),
                               " bytes wait for those of its user"));
        context->TryCancel();
        return;
      }
      queue.push_back(std::move(bytes));
      if (queue.size() == 1) this->StartWrite(&queue.front());
    }
    void End(absl::Status status) {
      if (std::exchange(ending, true)) return;
      final_status = std::move(status);
      if (queue.empty()) FinishCall();
    }
    void FinishCall() {
      finished = true;
      this->Finish(ToGrpc(final_status));
    }
    void Forget(size_t count) {
      for (; count > 0; --count) {
        queued->Remove(queue.front().Length());
        queue.pop_front();
      }
    }
    // The client's messages are parsed on this thread, one at a time.
    void OnReadDone(bool ok) override {
      In message;
      absl::Status parsed;
      if (ok) parsed = Parse(in, kMostMessage, &message);
      in.Clear();
      loop.Post([this, ok, parsed = std::move(parsed), message = std::move(message)]() mutable {
        if (!ok || !parsed.ok()) {
          if (!parsed.ok()) End(std::move(parsed));
          if (on_closed) std::exchange(on_closed, nullptr)();
          return;
        }
        if (!finished) this->StartRead(&in);
        if (!on_message) return;
        // Start may be called from inside.
        OnMessage handler = std::exchange(on_message, nullptr);
        handler(std::move(message));
        if (!on_message) on_message = std::move(handler);
      });
    }
    void OnWriteDone(bool ok) override {
      loop.Post([this, ok] {
        Forget(1);
        if (!ok) {
          broken = true;
          Forget(queue.size());
        }
        if (!queue.empty()) {
          this->StartWrite(&queue.front());
          return;
        }
        if (ending && !finished) FinishCall();
      });
    }
    void OnDone() override {
      loop.Post([this] {
        handle->call_ = nullptr;
        if (on_closed) std::exchange(on_closed, nullptr)();
        if (when_over) std::exchange(when_over, nullptr)();
        delete this;
      });
      CallbackEnds();
    }
    loop::Loop& loop;
    grpc::CallbackServerContext* const context;  // until OnDone
    const std::shared_ptr<SharedLimit> queued;
    std::shared_ptr<ServerStream> handle;
    OnMessage on_message;
    OnClosed on_closed;
    loop::Task when_over;
    grpc::ByteBuffer in;
    std::deque<grpc::ByteBuffer> queue;
    bool started = false;
    bool ending = false;
    bool broken = false;
    bool finished = false;
    absl::Status final_status;
  };
  explicit ServerStream(Call* call) : call_(call) {}
  Call* call_;  // null after the call ended
};

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
    // Also after OnCancel has finished the call: gRPC may have freed its end of it, and only the
    // news of that is still on its way to the loop.
    if (call_ == nullptr || call_->finished) {
      taken(false);
      return;
    }
    call_->out = Serialize(message);
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
