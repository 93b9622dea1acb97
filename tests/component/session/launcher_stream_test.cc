// SPDX-License-Identifier: Apache-2.0
// The agent's end of a session's stream, over gRPC; the test plays launcher and shepherd.
#include "agent/session/launcher_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/link/party.h"
#include "common/os/fd.h"
#include "common/rpc/bounded_message.h"
#include "common/rpc/channel.h"
#include "dtrain/v1/agent.grpc.pb.h"

namespace dtrain::session {
namespace {

using link::Frame;
using link::LinkCore;
using link::SharedBytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SessionService final : public v1::Agent::WithRawCallbackMethod_Session<v1::Agent::Service> {
 public:
  using Stream = LauncherStream::Stream;
  explicit SessionService(loop::Loop& loop) : loop_(loop) {}
  Stream::Reactor* Session(grpc::CallbackServerContext*) override {
    return Stream::New(loop_, [this](std::shared_ptr<Stream> stream) {
      streams.push_back(stream);
      stream->Listen({});
      stream->Start([this, stream](grpc::ByteBuffer first) {
        v1::Hello hello;
        ASSERT_TRUE(rpc::Parse(first, rpc::kMostQuestion, &hello).ok());
        on_hello(stream, hello);
      });
    });
  }
  std::function<void(std::shared_ptr<Stream>, const v1::Hello&)> on_hello;
  std::vector<std::shared_ptr<Stream>> streams;

 private:
  loop::Loop& loop_;
};

class LauncherStreamTest : public ::testing::Test {
 protected:
  // One connection of the launcher.
  struct Call {
    std::optional<rpc::ClientCarrier> carrier;
    std::optional<absl::Status> end;
  };

  LauncherStreamTest() : service_(loop_) {
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok());
    server_.emplace(service_, std::move(pair->first));
    connection_ = pair->second.get();
    channel_ = rpc::MakeChannel(std::move(pair->second));
    LauncherStream::Handlers handlers;
    handlers.on_request = [this](const v1::SessionRequest& request) {
      requests_.push_back(request.kind_case());
      if (destroyed_by_request_) stream_.reset();
    };
    handlers.on_heard = [this] { ++heard_; };
    handlers.on_job_frame = [this](const Frame& frame) {
      job_frames_.emplace_back(frame.payload.view());
      return job_frame_taken_;
    };
    handlers.next_job_frame = [this]() -> std::optional<Frame> {
      if (from_shepherd_.empty()) return std::nullopt;
      Frame frame;
      frame.header.channel = link::Channel::kJob;
      frame.payload = SharedBytes(from_shepherd_.front());
      frame.header.size = static_cast<uint32_t>(frame.payload.size());
      from_shepherd_.pop_front();
      return frame;
    };
    handlers.job_frames_first = [this] { return shepherd_gone_; };
    handlers.on_closed = [this] { ++closed_; };
    handlers.on_broke = [this](absl::Status why) { broke_ = std::move(why); };
    stream_.emplace(loop_, std::move(handlers));
    service_.on_hello = [this](std::shared_ptr<LauncherStream::Stream> stream,
                               const v1::Hello& hello) {
      stream_->Greet(hello);
      stream_->Listen(std::move(stream));
      EXPECT_TRUE(stream_->Open().ok());
    };
  }
  ~LauncherStreamTest() override {
    stream_.reset();
    // The server waits for its calls, and they for the loop.
    for (const auto& stream : service_.streams) {
      stream->Finish(absl::OkStatus());
      EXPECT_TRUE(Until([&] { return stream->over(); }));
    }
    for (const Call& call : calls_) EXPECT_TRUE(Until([&] { return call.end.has_value(); }));
    calls_.clear();
    channel_.reset();
    server_.reset();
    service_.streams.clear();
    loop_.context().poll();
  }

  static LinkCore::Options Options() {
    LinkCore::Options options;
    options.channel = link::Channel::kAgent;
    options.epoch = 4711;
    options.out = link::kOfAgent;
    options.in = link::kOfAgent;
    return options;
  }
  Call& Connect() {
    v1::Hello hello;
    *hello.mutable_agent() = link::OwedBy(launcher_);
    Call& call = calls_.emplace_back();
    link::CarrierHandlers handlers;
    handlers.next = [this]() -> std::optional<Frame> {
      if (!to_agent_.empty()) {
        Frame frame = std::move(to_agent_.front());
        to_agent_.pop_front();
        return frame;
      }
      return launcher_.Next(loop_.Now());
    };
    handlers.on_frame = [this](const Frame& frame) {
      if (frame.header.channel != link::Channel::kAgent) {
        got_.emplace_back(frame.payload.view());
        return;
      }
      auto message = launcher_.OnFrame(loop_.Now(), frame);
      ASSERT_TRUE(message.ok()) << message.status();
      if (!message->has_value()) return;
      v1::SessionEvent event;
      ASSERT_TRUE(rpc::Parse((*message)->view(), &event).ok());
      got_.push_back(event.has_attached() ? "attached" : event.warning().message());
    };
    handlers.on_closed = [this, &call](absl::Status why) {
      call.end = std::move(why);
      launcher_.Close();
    };
    call.carrier.emplace(
        loop_, channel_, "/dtrain.v1.Agent/Session", rpc::Serialize(hello),
        [this](grpc::ByteBuffer& greeting) {
          v1::SessionEvent event;
          ASSERT_TRUE(rpc::Parse(greeting, rpc::kMostQuestion, &event).ok());
          ASSERT_TRUE(event.has_opened());
          ASSERT_TRUE(launcher_.Open(loop_.Now(), link::FromProto(event.opened().agent())).ok());
          opened_ = true;
          calls_.back().carrier->Pump();
        },
        std::move(handlers));
    return call;
  }
  void Ask(const std::function<void(v1::SessionRequest&)>& set) {
    v1::SessionRequest request;
    set(request);
    ASSERT_TRUE(launcher_.Send(SharedBytes(request.SerializeAsString())).ok());
    if (opened_) calls_.back().carrier->Pump();
  }
  void Warn(const std::string& text) {
    v1::SessionEvent event;
    event.mutable_warning()->set_message(text);
    stream_->Send(event);
  }
  bool Until(const std::function<bool()>& holds) {
    const TimePoint end = Clock::now() + std::chrono::seconds(20);
    while (!holds()) {
      if (loop_.context().run_one_until(end) == 0) return holds();
    }
    return true;
  }

  loop::Loop loop_;
  SessionService service_;
  std::optional<rpc::StreamServer> server_;
  int connection_ = -1;  // the channel's
  std::shared_ptr<grpc::Channel> channel_;
  std::optional<LauncherStream> stream_;
  // What the session hears.
  std::vector<v1::SessionRequest::KindCase> requests_;
  bool destroyed_by_request_ = false;
  int heard_ = 0, closed_ = 0;
  std::vector<std::string> job_frames_;
  absl::Status job_frame_taken_;
  std::optional<absl::Status> broke_;
  std::deque<std::string> from_shepherd_;
  bool shepherd_gone_ = false;
  // The launcher.
  LinkCore launcher_{Options()};
  std::list<Call> calls_;
  std::deque<Frame> to_agent_;  // besides channel 0
  bool opened_ = false;
  std::vector<std::string> got_;
};

Frame OnChannel(link::Channel channel, const std::string& text) {
  Frame frame;
  frame.header.channel = channel;
  frame.payload = SharedBytes(text);
  frame.header.size = static_cast<uint32_t>(frame.payload.size());
  return frame;
}

TEST_F(LauncherStreamTest, TellsRequestsFromFramesOfTheShepherd) {
  to_agent_.push_back(OnChannel(link::Channel::kJob, "for the shepherd"));
  Connect();
  Ask([](auto& request) { request.mutable_look_again(); });
  ASSERT_TRUE(Until([&] { return !requests_.empty() && !job_frames_.empty(); }));
  EXPECT_THAT(requests_, ElementsAre(v1::SessionRequest::kLookAgain));
  EXPECT_THAT(job_frames_, ElementsAre("for the shepherd"));
  EXPECT_FALSE(broke_);
}

TEST_F(LauncherStreamTest, WhatIsSaidWithoutAStreamGoesOutOnTheNext) {
  Warn("one");
  Call& first = Connect();
  ASSERT_TRUE(Until([&] { return got_.size() == 1; }));
  stream_->Close();
  stream_->Finish(absl::CancelledError("the launcher is gone"));
  ASSERT_TRUE(Until([&] { return first.end.has_value(); }));
  Warn("two");
  opened_ = false;
  Connect();
  ASSERT_TRUE(Until([&] { return got_.size() == 2; }));
  EXPECT_THAT(got_, ElementsAre("one", "two"));
}

TEST_F(LauncherStreamTest, OfALivingShepherdTheAgentsWordsGoFirst) {
  Warn("the agent's");
  from_shepherd_ = {"the shepherd's"};
  Connect();
  ASSERT_TRUE(Until([&] { return got_.size() == 2; }));
  EXPECT_THAT(got_, ElementsAre("the agent's", "the shepherd's"));
}

TEST_F(LauncherStreamTest, WhatADeadShepherdSaidGoesBeforeTheWordOfItsEnd) {
  Warn("it is gone");
  from_shepherd_ = {"its last", "words"};
  shepherd_gone_ = true;
  Connect();
  ASSERT_TRUE(Until([&] { return got_.size() == 3; }));
  EXPECT_THAT(got_, ElementsAre("its last", "words", "it is gone"));
}

// Without its end of the channel the launcher cannot take its frames.
TEST_F(LauncherStreamTest, ButAfterItsEndOfTheChannel) {
  service_.on_hello = [this](std::shared_ptr<LauncherStream::Stream> stream,
                             const v1::Hello& hello) {
    stream_->Greet(hello);
    stream_->Listen(std::move(stream));
    ASSERT_TRUE(stream_->Open().ok());
    stream_->SendAttached({});
  };
  from_shepherd_ = {"its last"};
  shepherd_gone_ = true;
  Connect();
  ASSERT_TRUE(Until([&] { return got_.size() == 2; }));
  EXPECT_THAT(got_, ElementsAre("attached", "its last"));
}

TEST_F(LauncherStreamTest, AChannelThatNobodyOpenedBreaksARule) {
  to_agent_.push_back(OnChannel(link::Channel::kLogs, "x"));
  Connect();
  ASSERT_TRUE(Until([&] { return broke_.has_value(); }));
  EXPECT_THAT(std::string(broke_->message()), HasSubstr("nobody has opened"));
}

TEST_F(LauncherStreamTest, SoDoesAFrameThatTheShepherdsChannelRefuses) {
  job_frame_taken_ = absl::DataLossError("a gap");
  to_agent_.push_back(OnChannel(link::Channel::kJob, "x"));
  Connect();
  ASSERT_TRUE(Until([&] { return broke_.has_value(); }));
  EXPECT_EQ(broke_->message(), "a gap");
}

TEST_F(LauncherStreamTest, AMessageThatCannotBeReadDoes) {
  Connect();
  ASSERT_TRUE(launcher_.Send(SharedBytes("\xff\xff")).ok());
  ASSERT_TRUE(Until([&] { return broke_.has_value(); }));
  EXPECT_THAT(requests_, IsEmpty());
}

TEST_F(LauncherStreamTest, TheEndOfTheStreamIsTold) {
  Connect();
  ASSERT_TRUE(Until([&] { return opened_; }));
  ASSERT_EQ(shutdown(connection_, SHUT_RDWR), 0);
  ASSERT_TRUE(Until([&] { return closed_ == 1; }));
  EXPECT_FALSE(broke_);
}

TEST_F(LauncherStreamTest, AStreamThatWasReplacedCountsNoMore) {
  Call& first = Connect();
  ASSERT_TRUE(Until([&] { return opened_; }));
  stream_->Close();
  launcher_.Close();
  opened_ = false;
  Connect();
  ASSERT_TRUE(Until([&] { return opened_ && first.end.has_value(); }));
  EXPECT_THAT(std::string(first.end->message()), HasSubstr("another stream"));
  EXPECT_EQ(closed_, 0);
  EXPECT_FALSE(broke_);
}

TEST_F(LauncherStreamTest, AHandlerMayDestroyIt) {
  destroyed_by_request_ = true;
  Call& call = Connect();
  Ask([](auto& request) { request.mutable_goodbye(); });
  ASSERT_TRUE(Until([&] { return call.end.has_value(); }));
  EXPECT_FALSE(stream_.has_value());
}

}  // namespace
}  // namespace dtrain::session
