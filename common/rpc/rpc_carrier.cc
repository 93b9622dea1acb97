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
#include "common/rpc/tsan.h"

namespace dtrain::rpc {
namespace {

// What both ends do alike. gRPC's threads only decode a header and post; `in` and `out` are lent to
// gRPC while a read or write is on.
template <typename Reactor>
struct FrameCall : Reactor {
  explicit FrameCall(loop::Loop& l) : loop(l) {}

  void Pump() {
    if (writing || over || !handlers.next) return;
    std::optional<link::Frame> frame = handlers.next();
    if (!frame) return;
    out = ToBytes(*frame);
    writing = true;
    this->StartWrite(&out);
  }
  // False: nothing more is to be read.
  bool Deliver(absl::StatusOr<link::Frame> frame) {
    if (over) return false;
    if (!frame.ok()) {
      Broken(frame.status());
      return false;
    }
    handlers.on_frame(*std::move(frame));
    return !over;
  }
  // Nobody is asked or told anything from now on. The handlers stay: one of them may have called.
  void Silence() { over = true; }
  void Close(absl::Status why) {
    if (!std::exchange(over, true) && handlers.on_closed) handlers.on_closed(std::move(why));
  }
  virtual void Broken(absl::Status why) = 0;
  virtual void AfterRead(bool ok, absl::StatusOr<link::Frame> frame) = 0;
  virtual void AfterWrite(bool ok) = 0;

  void OnReadDone(bool ok) override {
    absl::StatusOr<link::Frame> frame = absl::CancelledError("");
    if (ok) frame = ToFrame(in);
    in.Clear();
    loop.Post([this, ok, frame = std::move(frame)]() mutable { AfterRead(ok, std::move(frame)); });
  }
  void OnWriteDone(bool ok) override {
    loop.Post([this, ok] {
      writing = false;
      out.Clear();
      AfterWrite(ok);
    });
  }

  loop::Loop& loop;
  link::CarrierHandlers handlers;
  grpc::ByteBuffer in;
  grpc::ByteBuffer out;
  bool writing = false;
  bool over = false;
};

}  // namespace

grpc::ByteBuffer ToBytes(const link::Frame& frame) {
  const auto header = link::EncodeHeader(frame.header);
  grpc::Slice slices[2] = {grpc::Slice(header.data(), header.size()), grpc::Slice()};
  if (frame.payload.size() == 0) return grpc::ByteBuffer(slices, 1);
  auto* owner = new link::SharedBytes(frame.payload);
  slices[1] = grpc::Slice(
      const_cast<char*>(owner->view().data()), owner->size(),
      [](void* held) { delete static_cast<link::SharedBytes*>(held); }, owner);
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

  void Begin() {
    stub.PrepareBidiStreamingCall(&context, method, grpc::StubOptions(), this);
    AddHold();  // the loop starts operations from outside the reactor
    StartRead(&in);
    StartCall();
  }
  void AfterRead(bool ok, absl::StatusOr<link::Frame> frame) override {
    if (ok && Deliver(std::move(frame))) {
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
                             const std::string& method, link::CarrierHandlers handlers)
    : call_(new Call(loop, channel, method)) {
  call_->handlers = std::move(handlers);
  call_->Begin();
}

ClientCarrier::~ClientCarrier() { call_->Abandon(); }

void ClientCarrier::Pump() {
  if (!call_->ending) call_->Pump();
}

struct ServerCarrier::Call final
    : FrameCall<grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>> {
  explicit Call(loop::Loop& l) : FrameCall(l) {}

  void AfterRead(bool ok, absl::StatusOr<link::Frame> frame) override {
    if (!ok) return Close(absl::OkStatus());
    if (!Deliver(std::move(frame))) return;
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
      delete this;
    });
    CallbackEnds();
  }

  std::shared_ptr<ServerCarrier> handle;
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

void ServerCarrier::Start(link::CarrierHandlers handlers) {
  if (call_ == nullptr || call_->over) return;
  DTRAIN_CHECK(!std::exchange(call_->started, true));
  call_->handlers = std::move(handlers);
  call_->StartRead(&call_->in);
  call_->Pump();
}

void ServerCarrier::Pump() {
  if (call_ != nullptr && !call_->broken) call_->Pump();
}

void ServerCarrier::Finish(absl::Status status) {
  if (call_ != nullptr) call_->End(std::move(status));
}

}  // namespace dtrain::rpc
