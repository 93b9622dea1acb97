// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/rpc_carrier.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/server_callback.h>

#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/link/shared_bytes.h"
#include "common/rpc/channel.h"
#include "common/rpc/shared_slice.h"
#include "common/rpc/tsan.h"

namespace dtrain::rpc {
namespace {

// What was read: the first message as it is, each later one as a frame.
struct Incoming {
  bool ok = false;
  bool is_greeting = false;
  grpc::ByteBuffer greeting;
  absl::StatusOr<link::Frame> frame = absl::CancelledError("");
};

// What both ends do alike. gRPC's threads only decode a header and post; `in` and `out` are lent to
// gRPC while a read or write is on.
template <typename Reactor>
struct FrameCall : Reactor {
  explicit FrameCall(loop::Loop& l) : loop(l) {}

  void Write(const grpc::ByteBuffer& bytes) {
    out = bytes;
    writing = true;
    this->StartWrite(&out);
  }
  void Pump() {
    if (writing || over || !greeted || !handlers->next) return;
    if (std::optional<link::Frame> frame = handlers->next()) Write(ToBytes(*frame));
  }
  // False: nothing more is to be read.
  bool Deliver(Incoming incoming) {
    if (over) return false;
    if (incoming.is_greeting) {
      std::exchange(on_greeting, nullptr)(incoming.greeting);
      return !over;
    }
    if (!incoming.frame.ok()) {
      Broken(incoming.frame.status());
      return false;
    }
    if (!greeted) {
      Broken(absl::DataLossError("a frame came before the greeting was answered"));
      return false;
    }
    const std::shared_ptr<link::CarrierHandlers> current = handlers;
    if (current->on_frame) current->on_frame(*std::move(incoming.frame));
    return !over;
  }
  // Nobody is asked or told anything from now on.
  void Silence() { over = true; }
  void Close(absl::Status why) {
    const std::shared_ptr<link::CarrierHandlers> current = handlers;
    if (!std::exchange(over, true) && current->on_closed) current->on_closed(std::move(why));
  }
  virtual void Broken(absl::Status why) = 0;
  virtual void AfterRead(Incoming incoming) = 0;
  virtual void AfterWrite(bool ok) = 0;

  void OnReadDone(bool ok) override {
    Incoming incoming;
    incoming.ok = ok;
    if (ok && !std::exchange(heard_greeting, true)) {
      incoming.is_greeting = true;
      incoming.greeting.Swap(&in);
    } else if (ok) {
      incoming.frame = ToFrame(in);
    }
    in.Clear();
    loop.Post([this, incoming = std::move(incoming)]() mutable { AfterRead(std::move(incoming)); });
  }
  void OnWriteDone(bool ok) override {
    loop.Post([this, ok] {
      writing = false;
      out.Clear();
      AfterWrite(ok);
    });
  }

  loop::Loop& loop;
  OnGreeting on_greeting;
  // Others may be named while one of them runs.
  std::shared_ptr<link::CarrierHandlers> handlers = std::make_shared<link::CarrierHandlers>();
  grpc::ByteBuffer in;
  grpc::ByteBuffer out;
  bool heard_greeting = false;  // gRPC's, of one read after the other
  bool greeted = false;         // our greeting is on its way
  bool writing = false;
  bool over = false;
};

}  // namespace

grpc::ByteBuffer ToBytes(const link::Frame& frame) {
  const auto header = link::EncodeHeader(frame.header);
  grpc::Slice slices[2] = {grpc::Slice(header.data(), header.size()), grpc::Slice()};
  if (frame.payload.size() == 0) return grpc::ByteBuffer(slices, 1);
  slices[1] = ToSlice(frame.payload);
  return grpc::ByteBuffer(slices, 2);
}

absl::StatusOr<link::Frame> ToFrame(const grpc::ByteBuffer& bytes) {
  if (bytes.Length() > link::kHeaderBytes + link::kMostPayload) {
    return absl::DataLossError("invalid frame: too long");  // before it is copied
  }
  auto owner = std::make_shared<grpc::Slice>();
  // Joins the slices when there are several.
  if (!bytes.TrySingleSlice(owner.get()).ok() && !bytes.DumpToSingleSlice(owner.get()).ok()) {
    return absl::DataLossError("invalid frame: no bytes");
  }
  const absl::string_view view(reinterpret_cast<const char*>(owner->begin()), owner->size());
  return link::DecodeFrame(link::SharedBytes(std::move(owner), view, view.size()));
}

// Deletes itself on the loop when gRPC is done with it.
struct ClientCarrier::Call final
    : FrameCall<grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>> {
  Call(loop::Loop& l, const std::shared_ptr<grpc::Channel>& channel, std::string m)
      : FrameCall(l), method(std::move(m)), stub(channel) {}

  void Begin(const grpc::ByteBuffer& greeting) {
    stub.PrepareBidiStreamingCall(&context, method, grpc::StubOptions(), this);
    AddHold();  // the loop starts operations from outside the reactor
    StartRead(&in);
    greeted = true;
    Write(greeting);
    StartCall();
  }
  void AfterRead(Incoming incoming) override {
    const bool ok = incoming.ok;
    if (ok && Deliver(std::move(incoming))) {
      StartRead(&in);
      Pump();
      return;
    }
    // No read or write is started from here on, so gRPC may finish the call.
    ending = true;
    if (ok) context.TryCancel();
    RemoveHold();
  }
  void AfterWrite(bool ok) override {
    if (ok && !ending) Pump();
  }
  void Broken(absl::Status why) override { Close(std::move(why)); }
  void Abandon() {
    Silence();
    if (gone) {
      delete this;
      return;
    }
    abandoned = true;
    context.TryCancel();
  }
  void OnDone(const grpc::Status& status) override {
    loop.Post([this, status] {
      gone = true;
      if (abandoned) {
        delete this;
      } else {
        Close(FromGrpc(status));
      }
    });
  }

  const std::string method;
  grpc::GenericStub stub;
  grpc::ClientContext context;
  bool ending = false;
  bool abandoned = false;
  bool gone = false;
};

ClientCarrier::ClientCarrier(loop::Loop& loop, const std::shared_ptr<grpc::Channel>& channel,
                             const std::string& method, const grpc::ByteBuffer& greeting,
                             OnGreeting on_greeting, link::CarrierHandlers handlers)
    : call_(new Call(loop, channel, method)) {
  call_->on_greeting = std::move(on_greeting);
  *call_->handlers = std::move(handlers);
  call_->Begin(greeting);
}

ClientCarrier::~ClientCarrier() { call_->Abandon(); }

void ClientCarrier::Pump() {
  if (!call_->ending) call_->Pump();
}

struct ServerCarrier::Call final
    : FrameCall<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>> {
  explicit Call(loop::Loop& l) : FrameCall(l) {}

  void AfterRead(Incoming incoming) override {
    if (!incoming.ok) return Close(absl::OkStatus());
    if (!Deliver(std::move(incoming))) return;
    StartRead(&in);
    Pump();
  }
  void AfterWrite(bool ok) override {
    broken = broken || !ok;
    if (over) {
      FinishCall();
    } else if (!broken) {
      Pump();
    }
  }
  void Broken(absl::Status why) override {
    final_status = why;
    ending = true;
    Close(std::move(why));
    FinishCall();
  }
  void End(absl::Status status) {
    if (std::exchange(ending, true)) return;
    final_status = std::move(status);
    Silence();
    FinishCall();
  }
  void FinishCall() {
    if (!ending || writing || std::exchange(finished, true)) return;
    this->Finish(ToGrpc(final_status));
  }
  void OnDone() override {
    loop.Post([this] {
      handle->call_ = nullptr;
      Close(absl::OkStatus());
      if (when_over) std::exchange(when_over, nullptr)();
      delete this;
    });
    CallbackEnds();
  }

  std::shared_ptr<ServerCarrier> handle;
  loop::Task when_over;
  bool started = false;
  bool broken = false;
  bool ending = false;
  bool finished = false;
  absl::Status final_status;
};

ServerCarrier::Reactor* ServerCarrier::New(loop::Loop& loop, Accept accept) {
  auto* call = new Call(loop);
  std::shared_ptr<ServerCarrier> handle(new ServerCarrier(call));
  call->handle = handle;
  loop.Post([handle, accept = std::move(accept)]() mutable { accept(handle); });
  return call;
}

void ServerCarrier::Start(OnGreeting on_greeting) {
  if (call_ == nullptr || call_->over) return;
  DTRAIN_CHECK(!std::exchange(call_->started, true));
  call_->on_greeting = std::move(on_greeting);
  call_->StartRead(&call_->in);
}

void ServerCarrier::Listen(link::CarrierHandlers handlers) {
  if (call_ == nullptr) return;
  call_->handlers = std::make_shared<link::CarrierHandlers>(std::move(handlers));
}

void ServerCarrier::Greet(const grpc::ByteBuffer& greeting) {
  if (call_ == nullptr || call_->over || call_->broken) return;
  DTRAIN_CHECK(!std::exchange(call_->greeted, true));
  call_->Write(greeting);
}

void ServerCarrier::Pump() {
  if (call_ != nullptr && !call_->broken) call_->Pump();
}

void ServerCarrier::WhenOver(loop::Task task) {
  if (call_ == nullptr) {
    task();
  } else {
    call_->when_over = std::move(task);
  }
}

void ServerCarrier::Finish(absl::Status status) {
  if (call_ != nullptr) call_->End(std::move(status));
}

}  // namespace dtrain::rpc
