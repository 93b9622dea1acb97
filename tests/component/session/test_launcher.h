// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/link/party.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "common/rpc/bounded_message.h"
#include "common/rpc/channel.h"
#include "common/rpc/rpc_carrier.h"
#include "dtrain/v1/agent.pb.h"

namespace dtrain::session {

// One launcher, as an agent sees it: its process lives as long as this, its connections come and
// go.
class TestLauncher {
 public:
  TestLauncher(loop::Loop& loop, v1::Hello hello) : loop_(loop), hello_(std::move(hello)) {
    agent_.emplace(Options(link::Channel::kAgent, link::kOfAgent, link::kOfAgent));
    job_.emplace(Options(link::Channel::kJob, link::kToShepherd, link::kToLauncher));
  }
  ~TestLauncher() { Hang(); }

  // The stream is there: says Hello on it.
  void Greet(os::UniqueFd stream, bool resume) {
    Hang();
    end_.reset();
    attached_ = opened_ = false;
    channel_ = rpc::MakeChannel(std::move(stream));
    v1::SessionRequest request;
    *request.mutable_hello() = hello_;
    request.mutable_hello()->set_resume(resume);
    *request.mutable_hello()->mutable_agent() = link::OwedBy(*agent_);
    *request.mutable_hello()->mutable_job() = link::OwedBy(*job_);
    link::CarrierHandlers handlers;
    handlers.next = [this]() -> std::optional<link::Frame> {
      if (auto frame = agent_->Next(loop_.Now())) return frame;
      return job_->Next(loop_.Now());
    };
    handlers.on_frame = [this](const link::Frame& frame) { OnFrame(frame); };
    handlers.on_closed = [this](absl::Status why) {
      end_ = std::move(why);
      agent_->Close();
      job_->Close();
    };
    carrier_.emplace(
        loop_, channel_, "/dtrain.v1.Agent/Session", rpc::Serialize(request),
        [this](grpc::ByteBuffer& greeting) {
          v1::SessionEvent event;
          ASSERT_TRUE(rpc::Parse(greeting, rpc::kMostQuestion, &event).ok());
          const link::Party party = link::FromProto(event.opened().agent());
          absl::Status open = agent_->Open(loop_.Now(), party);
          if (absl::IsAborted(open)) open = agent_->Open(loop_.Now(), party);
          ASSERT_TRUE(open.ok()) << open;
          opened_ = true;
          carrier_->Pump();
        },
        std::move(handlers));
  }
  // Its connection is gone.
  void Hang() {
    carrier_.reset();
    channel_.reset();
    agent_->Close();
    job_->Close();
  }
  // It stands still.
  void Send(const v1::SessionRequest& request) {
    ASSERT_TRUE(agent_->Send(link::SharedBytes(request.SerializeAsString())).ok());
    if (carrier_) carrier_->Pump();
  }
  void Send(const v1::JobRequest& request) {
    ASSERT_TRUE(job_->Send(link::SharedBytes(request.SerializeAsString())).ok());
    if (carrier_) carrier_->Pump();
  }
  void Beat() {
    v1::SessionRequest agent;
    agent.mutable_heartbeat();
    v1::JobRequest job;
    job.mutable_heartbeat();
    (void)agent_->SendUnkept(0, link::SharedBytes(agent.SerializeAsString()));
    (void)job_->SendUnkept(0, link::SharedBytes(job.SerializeAsString()));
    if (carrier_) carrier_->Pump();
  }
  bool Until(const std::function<bool()>& holds, Duration limit = std::chrono::seconds(20)) {
    const TimePoint end = Clock::now() + limit;
    while (!holds()) {
      if (loop_.context().run_one_until(end) != 0) continue;
      if (holds()) return true;
      if (limit == std::chrono::seconds(20)) Describe();
      return false;
    }
    return true;
  }
  void Describe() const {
    std::fprintf(stderr, "launcher: opened %d attached %d end %s\n", opened_, attached_,
                 end_ ? end_->ToString().c_str() : "-");
    for (const v1::SessionEvent& event : said_) {
      std::fprintf(stderr, "  %s\n", event.ShortDebugString().substr(0, 200).c_str());
    }
  }
  // Runs a shell script as one worker; it has been welcomed. Its pid.
  uint32_t Run(const std::string& script) {
    EXPECT_EQ(Reserve(), "");
    Start(script);
    EXPECT_TRUE(Until([this] { return started_.has_value() || !failures_.empty(); }));
    for (const std::string& failure : failures_) ADD_FAILURE() << failure;
    return started_ ? started_->workers(0).pid() : 0;
  }
  // Why not; "" if it is reserved.
  std::string Reserve(const v1::Reserve& share = {}) {
    v1::SessionRequest reserve;
    *reserve.mutable_reserve() = share;
    Send(reserve);
    EXPECT_TRUE(Until([this] { return refused_.has_value() && attached_; }));
    return refused_.value_or("no answer");
  }
  void Start(const std::string& script) {
    v1::JobRequest start;
    v1::JobPart& part = *start.mutable_start();
    part.set_job_id(hello_.job_id());
    part.set_attempt(hello_.attempt());
    part.set_node_count(1);
    part.set_world_size(1);
    part.set_universe_size(1);
    part.set_host("here");
    part.set_grace_ms(2000);
    part.set_spool_limit_bytes(4 << 20);
    part.add_contracts(v1::CONTRACT_DTRAIN);
    v1::Program& program = *part.add_programs();
    for (const char* word : {"/bin/sh", "-c"}) program.add_argv(word);
    program.add_argv(script);
    v1::EnvVar& path = *part.add_env();
    path.set_name("PATH");
    path.set_value("/usr/local/bin:/usr/bin:/bin");
    v1::WorkerSpec& worker = *part.add_workers();
    worker.set_cross_size(1);
    Send(start);
  }
  void End() {
    v1::JobRequest stop;
    stop.mutable_stop();
    Send(stop);
    ASSERT_TRUE(Until([this] { return finished_ && released_ > 0; }));
    SayGoodbye();
  }
  void SayGoodbye() {
    v1::SessionRequest goodbye;
    goodbye.mutable_goodbye();
    Send(goodbye);
    ASSERT_TRUE(Until([this] { return end_.has_value(); }));
    EXPECT_TRUE(end_->ok()) << *end_;
  }

  v1::Hello& hello() { return hello_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  std::optional<absl::Status> end_;  // of the stream
  bool opened_ = false;
  bool attached_ = false;
  std::vector<v1::SessionEvent> said_;  // by the agent
  std::optional<v1::Welcome> welcome_;
  std::optional<std::string> refused_;  // what it was to reserve; empty: it has
  int released_ = 0;
  int retold_ = 0;
  bool finished_ = false;
  std::optional<v1::Started> started_;
  std::map<uint32_t, v1::WorkerExit> exits_;
  std::vector<std::string> failures_;

 private:
  static link::LinkCore::Options Options(link::Channel channel, const link::Caps& out,
                                         const link::Caps& in) {
    link::LinkCore::Options options;
    options.channel = channel;
    options.epoch = link::RandomEpoch();
    options.out = out;
    options.in = in;
    options.forgets = channel == link::Channel::kAgent;
    return options;
  }
  void OnFrame(const link::Frame& frame) {
    const bool of_job = frame.header.channel == link::Channel::kJob;
    auto message = (of_job ? job_ : agent_)->OnFrame(loop_.Now(), frame);
    ASSERT_TRUE(message.ok()) << message.status();
    due_.At(std::min(agent_->NextDeadline(), job_->NextDeadline()), [this] {
      if (carrier_) carrier_->Pump();
    });
    if (!message->has_value()) return;
    if (of_job) {
      v1::JobEvent event;
      ASSERT_TRUE(rpc::Parse((*message)->view(), &event).ok());
      if (event.has_started()) started_ = event.started();
      if (event.has_exit()) exits_[event.exit().rank()] = event.exit();
      if (event.has_finished()) finished_ = true;
      if (event.has_retold()) ++retold_;
      if (event.has_failure()) failures_.push_back(event.failure().message());
      return;
    }
    v1::SessionEvent event;
    ASSERT_TRUE(rpc::Parse((*message)->view(), &event).ok());
    if (event.has_heartbeat()) return;
    if (event.has_attached()) {
      absl::Status open = job_->Open(loop_.Now(), link::FromProto(event.attached()));
      ASSERT_TRUE(open.ok()) << open;
      attached_ = true;
      carrier_->Pump();
      return;
    }
    said_.push_back(event);
    if (event.has_welcome()) welcome_ = event.welcome();
    if (event.has_reserved()) refused_ = event.reserved().refused();
    if (event.has_released()) ++released_;
    if (event.has_failure()) failures_.push_back(event.failure().message());
  }

  loop::Loop& loop_;
  v1::Hello hello_;
  std::optional<link::LinkCore> agent_, job_;
  std::shared_ptr<grpc::Channel> channel_;
  std::optional<rpc::ClientCarrier> carrier_;
  loop::Timer due_{loop_};
};

}  // namespace dtrain::session
