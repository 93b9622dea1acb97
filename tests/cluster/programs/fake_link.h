// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/link/link_core.h"
#include "common/link/party.h"
#include "common/loop/loop.h"
#include "common/rpc/bounded_message.h"
#include "common/rpc/rpc_carrier.h"
#include "dtrain/v1/agent.pb.h"

namespace dtrain {

// Both ends that a launcher speaks to, an agent's and a shepherd's, without what is behind them. On
// the loop.
class FakeLink {
 public:
  struct Handlers {
    std::function<void(const v1::Hello&)> on_hello;
    std::function<void(const v1::SessionRequest&)> on_request;  // of the agent
    // Of the shepherd: a start with what is common.
    std::function<void(const v1::JobRequest&)> on_job_request;
    std::function<void()> on_closed;
  };

  FakeLink(loop::Loop& loop, std::shared_ptr<rpc::ServerCarrier> stream, Handlers handlers)
      : loop_(loop), stream_(std::move(stream)), handlers_(std::move(handlers)), due_(loop) {
    link::LinkCore::Options options;
    options.channel = link::Channel::kAgent;
    options.epoch = 1;
    options.out = options.in = link::kOfAgent;
    agent_.emplace(options);
    options.channel = link::Channel::kJob;
    options.out = link::kToLauncher;
    options.in = link::kToShepherd;
    shepherd_.emplace(options);
    stream_->Listen({[this] { return Next(); }, [this](const link::Frame& f) { OnFrame(f); },
                     [this](const absl::Status&) { handlers_.on_closed(); }});
    stream_->Start([this](grpc::ByteBuffer& bytes) { OnHello(bytes); });
  }
  FakeLink(const FakeLink&) = delete;
  FakeLink& operator=(const FakeLink&) = delete;

  // As the agent: on_hello is the first to say something.
  void SayAsAgent(const v1::SessionEvent& event) { Say(*agent_, event); }
  void SayAsShepherd(const v1::JobEvent& event) { Say(*shepherd_, event); }
  void Beat() {
    v1::SessionEvent event;
    event.mutable_heartbeat();
    Must(agent_->SendUnkept(1, link::SharedBytes(event.SerializeAsString())).status());
    stream_->Pump();
  }

 private:
  void OnHello(grpc::ByteBuffer& bytes) {
    v1::SessionRequest request;
    Must(rpc::Parse(bytes, rpc::kMostQuestion, &request));
    v1::SessionEvent opened, attached;
    *opened.mutable_opened()->mutable_agent() = link::OwedBy(*agent_);
    *attached.mutable_attached() = link::OwedBy(*shepherd_);
    Must(agent_->Open(loop_.Now(), link::FromProto(request.hello().agent())));
    Must(shepherd_->Open(loop_.Now(), link::FromProto(request.hello().job())));
    stream_->Greet(rpc::Serialize(opened));
    Must(agent_->SendUnkept(0, link::SharedBytes(attached.SerializeAsString())).status());
    handlers_.on_hello(request.hello());
  }
  std::optional<link::Frame> Next() {
    auto frame = agent_->Next(loop_.Now());
    return frame ? std::move(frame) : shepherd_->Next(loop_.Now());
  }
  void OnFrame(const link::Frame& frame) {
    const bool job = frame.header.channel == link::Channel::kJob;
    auto message = (job ? shepherd_ : agent_)->OnFrame(loop_.Now(), frame);
    Must(message.status());
    due_.At(std::min(agent_->NextDeadline(), shepherd_->NextDeadline()),
            [this] { stream_->Pump(); });
    if (message->has_value()) {
      const absl::string_view bytes = (*message)->view();
      job ? OnJobMessage(bytes) : OnAgentMessage(bytes);
    }
    stream_->Pump();
  }
  void OnAgentMessage(absl::string_view bytes) {
    v1::SessionRequest request;
    Must(rpc::Parse(bytes, &request));
    handlers_.on_request(request);
  }
  void OnJobMessage(absl::string_view bytes) {
    v1::JobRequest request;
    Must(rpc::Parse(bytes, &request));
    if (request.has_heartbeat()) {
      v1::JobEvent event;
      event.mutable_heartbeat();
      Must(shepherd_->SendUnkept(0, link::SharedBytes(event.SerializeAsString())).status());
      return;
    }
    if (request.has_common()) {
      common_ = std::move(*request.mutable_common());
      return;
    }
    if (request.has_start()) {
      common_.MergeFrom(request.start());
      *request.mutable_start() = std::exchange(common_, {});
    }
    handlers_.on_job_request(request);
  }
  void Say(link::LinkCore& core, const google::protobuf::MessageLite& event) {
    Must(core.Send(link::SharedBytes(event.SerializeAsString())));
    stream_->Pump();
  }
  static void Must(const absl::Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "a fake agent: %s\n", std::string(status.message()).c_str());
    std::_Exit(1);
  }

  loop::Loop& loop_;
  const std::shared_ptr<rpc::ServerCarrier> stream_;
  const Handlers handlers_;
  std::optional<link::LinkCore> agent_, shepherd_;
  loop::Timer due_;
  v1::JobPart common_;
};

}  // namespace dtrain
