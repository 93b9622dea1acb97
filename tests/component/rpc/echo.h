// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/link/frame.h"
#include "common/link/shared_bytes.h"
#include "common/rpc/rpc_carrier.h"

// Calls whose frames are texts, and what the servers of tests answer them with.
namespace dtrain::rpc {

inline grpc::ByteBuffer Words(const std::string& text) {
  const grpc::Slice slice(text);
  return grpc::ByteBuffer(&slice, 1);
}

// Texts that wait for a carrier to ask for them.
class Texts {
 public:
  void Add(std::string text) { texts_.push_back(std::move(text)); }
  std::optional<link::Frame> Next() {
    if (texts_.empty()) return std::nullopt;
    link::Frame frame{{}, link::SharedBytes(std::move(texts_.front()))};
    frame.header.size = static_cast<uint32_t>(frame.payload.size());
    texts_.pop_front();
    return frame;
  }

 private:
  std::deque<std::string> texts_;
};

// The server's end: sends back what it hears, and at "bye" finishes.
class EchoCall {
 public:
  // `on_closed`: the client is gone.
  static ServerCarrier::Reactor* New(loop::Loop& loop, absl::Status at_bye,
                                     std::function<void()> on_closed) {
    auto call = std::make_shared<EchoCall>();
    call->at_bye_ = std::move(at_bye);
    return ServerCarrier::New(loop, [call, on_closed](std::shared_ptr<ServerCarrier> carrier) {
      ServerCarrier& its = *carrier;
      its.Listen({[call] { return call->texts_.Next(); },
                  [call, carrier](const link::Frame& frame) {
                    std::string text(frame.payload.view());
                    if (text == "bye") return call->ByeNow(*carrier);
                    call->texts_.Add(std::move(text));
                    carrier->Pump();
                  },
                  [carrier, on_closed](const absl::Status&) {
                    on_closed();
                    carrier->Finish(absl::OkStatus());
                  }});
      its.Start([carrier](const grpc::ByteBuffer&) { carrier->Greet(Words("greetings")); });
    });
  }

 private:
  void ByeNow(ServerCarrier& carrier) { carrier.Finish(at_bye_); }

  absl::Status at_bye_;
  Texts texts_;
};

// The client's end.
class Chat {
 public:
  Chat(loop::Loop& loop, const std::shared_ptr<grpc::Channel>& channel,
       std::function<void(std::string)> on_text, std::function<void(absl::Status)> on_closed)
      : carrier_(
            loop, channel, "/dtrain.v1.Agent/Session", Words("good day"),
            [](const grpc::ByteBuffer&) {},
            {[this] { return texts_.Next(); },
             [on_text](const link::Frame& frame) { on_text(std::string(frame.payload.view())); },
             [on_closed](absl::Status status) { on_closed(std::move(status)); }}) {}
  void Say(std::string text) {
    texts_.Add(std::move(text));
    carrier_.Pump();
  }

 private:
  Texts texts_;
  ClientCarrier carrier_;
};

}  // namespace dtrain::rpc
