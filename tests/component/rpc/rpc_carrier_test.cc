// SPDX-License-Identifier: Apache-2.0
// A link over gRPC: both ends on loops of their own, over socket pairs that break.
#include "common/rpc/rpc_carrier.h"

#include <grpc/grpc.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/link/link_core.h"
#include "common/os/fd.h"
#include "common/rpc/channel.h"
#include "dtrain/v1/agent.grpc.pb.h"
#include "tests/component/rpc/echo.h"

namespace dtrain::rpc {
namespace {

using link::Frame;
using link::LinkCore;
using link::SharedBytes;

constexpr Duration kCarrierDeadline = std::chrono::seconds(60);
constexpr char kMethod[] = "/dtrain.v1.Agent/Session";

std::string TextOf(const grpc::ByteBuffer& bytes) {
  grpc::Slice slice;
  EXPECT_TRUE(bytes.DumpToSingleSlice(&slice).ok());
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

size_t ResidentBytes() {
  size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// One end of a conversation. On its loop.
struct Talker {
  Talker(loop::Loop& l, uint64_t epoch, const link::Caps& out, const link::Caps& in, uint32_t seed)
      : loop(l), random(seed), tick(l) {
    LinkCore::Options options;
    options.epoch = epoch;
    options.out = out;
    options.in = in;
    core.emplace(options);
  }
  uint32_t Pick(uint32_t below) {
    return std::uniform_int_distribution<uint32_t>(0, below - 1)(random);
  }
  void Say(int messages) {
    for (int i = 0; i < messages; ++i) {
      std::string text = absl::StrCat(sent.size(), ":");
      text.resize(text.size() + Pick(Pick(10) == 0 ? 300'000 : 1000), 'x');
      ASSERT_TRUE(core->Send(SharedBytes(text)).ok());
      sent.push_back(std::move(text));
      ASSERT_TRUE(core->SendUnkept(0, SharedBytes("state")).ok());
    }
  }
  link::CarrierHandlers Handlers() {
    return {[this] { return core->Next(loop.Now()); }, [this](Frame f) { OnFrame(f); },
            [this](absl::Status status) {
              core->Close();
              tick.Cancel();
              if (on_closed) on_closed(std::move(status));
            }};
  }
  void OnFrame(const Frame& frame) {
    auto message = core->OnFrame(loop.Now(), frame);
    ASSERT_TRUE(message.ok()) << message.status();
    if (frame.header.keep && message->has_value()) got.emplace_back((*message)->view());
    tick.At(core->NextDeadline(), [this] { pump(); });
    if (on_message) on_message();
  }

  loop::Loop& loop;
  std::mt19937 random;
  loop::Timer tick;
  std::optional<LinkCore> core;
  std::function<void()> pump;
  std::function<void()> on_message;
  std::function<void(absl::Status)> on_closed;
  std::vector<std::string> sent;
  std::vector<std::string> got;
};

class LinkService final : public v1::Agent::WithRawCallbackMethod_Session<v1::Agent::Service> {
 public:
  explicit LinkService(loop::Loop& loop) : loop_(loop) {}
  ServerCarrier::Reactor* Session(grpc::CallbackServerContext*) override {
    return ServerCarrier::New(
        loop_, [this](std::shared_ptr<ServerCarrier> carrier) { accept(std::move(carrier)); });
  }
  std::function<void(std::shared_ptr<ServerCarrier>)> accept;

 private:
  loop::Loop& loop_;
};

class RpcCarrierTest : public ::testing::Test {
 protected:
  // Kept: the end of the last channel or server would shut gRPC down, which takes up to ten
  // seconds.
  static void SetUpTestSuite() { grpc_init(); }

  RpcCarrierTest() : service_(server_loop_) {
    server_thread_ = std::thread([this] { server_loop_.Run(); });
    Connect();
  }
  ~RpcCarrierTest() override {
    client_.reset();
    channel_.reset();
    server_.reset();
    server_loop_.Post([this] { server_loop_.Stop(); });
    server_thread_.join();
  }
  void Connect() {
    auto pair = os::SocketPair();
    ASSERT_TRUE(pair.ok());
    channel_.reset();
    server_.reset();
    server_.emplace(service_, std::move(pair->first));
    raw_client_fd_ = pair->second.get();
    channel_ = MakeChannel(std::move(pair->second));
  }
  void Run() {
    loop::Timer deadline(loop_);
    bool late = false;
    deadline.After(kCarrierDeadline, [&] {
      late = true;
      loop_.Stop();
    });
    loop_.context().restart();
    loop_.Run();
    ASSERT_FALSE(late);
  }
  template <typename Result>
  Result OnServer(std::function<Result()> task) {
    std::promise<Result> done;
    server_loop_.Post([&] { done.set_value(task()); });
    return done.get_future().get();
  }
  // Frames that the server gets, and the end of its carrier.
  struct Heard {
    std::shared_ptr<ServerCarrier> carrier;
    std::string greeting;
    std::vector<std::string> frames;
    std::optional<absl::Status> closed;
  };
  void ListenOnServer() {
    service_.accept = [this](std::shared_ptr<ServerCarrier> carrier) {
      heard_.carrier = carrier;
      carrier->Listen({[]() -> std::optional<Frame> { return std::nullopt; },
                       [this](Frame frame) { heard_.frames.emplace_back(frame.payload.view()); },
                       [this](absl::Status status) {
                         EXPECT_FALSE(heard_.closed.has_value());
                         heard_.closed = std::move(status);
                         heard_.carrier->Finish(absl::OkStatus());
                       }});
      carrier->Start([this](const grpc::ByteBuffer& greeting) {
        heard_.greeting = TextOf(greeting);
        if (greets_) heard_.carrier->Greet(Words("greetings"));
      });
    };
  }
  void Open(link::CarrierHandlers handlers) {
    client_.emplace(
        loop_, channel_, kMethod, Words("good day"),
        [this](const grpc::ByteBuffer& greeting) { greeting_ = TextOf(greeting); },
        std::move(handlers));
  }
  absl::Status ClosedOnServer() {
    const TimePoint until = Clock::now() + kCarrierDeadline;
    while (Clock::now() < until) {
      auto closed = OnServer<std::optional<absl::Status>>([&] { return heard_.closed; });
      if (closed) return *closed;
      std::this_thread::yield();
    }
    return absl::DeadlineExceededError("the server's end was not closed");
  }

  loop::Loop server_loop_;
  loop::Loop loop_;
  LinkService service_;
  std::optional<StreamServer> server_;
  std::thread server_thread_;
  int raw_client_fd_ = -1;
  std::shared_ptr<grpc::Channel> channel_;
  std::optional<ClientCarrier> client_;
  std::string greeting_;  // the server's
  bool greets_ = true;
  Heard heard_;  // the server loop's
};

TEST_F(RpcCarrierTest, EachMessageArrivesOnceThroughManyBreaks) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Talker here(loop_, 1, link::kToShepherd, link::kToLauncher, seed);
  Talker there(server_loop_, 2, link::kToLauncher, link::kToShepherd, seed + 1);
  std::shared_ptr<ServerCarrier> carrier;
  link::Party of_here;
  there.pump = [&] {
    if (carrier != nullptr) carrier->Pump();
  };
  there.on_closed = [&](const absl::Status&) { carrier->Finish(absl::OkStatus()); };
  service_.accept = [&](std::shared_ptr<ServerCarrier> accepted) {
    carrier = std::move(accepted);
    ASSERT_TRUE(there.core->Open(server_loop_.Now(), of_here).ok());
    carrier->Listen(there.Handlers());
    carrier->Start([&](const grpc::ByteBuffer&) { carrier->Greet(Words("greetings")); });
    there.tick.At(there.core->NextDeadline(), [&] { there.pump(); });
  };
  here.pump = [&] {
    if (client_) client_->Pump();
  };
  constexpr int kBreaks = 30;
  loop::Timer cut(loop_);
  for (int connection = 0; connection <= kBreaks && !HasFatalFailure(); ++connection) {
    const bool last = connection == kBreaks;
    Connect();
    here.Say(20);
    of_here = here.core->Owed();
    const auto of_there = OnServer<link::Party>([&] {
      there.Say(20);
      // The end of the call may still be on its way here.
      carrier.reset();
      there.core->Close();
      return there.core->Owed();
    });
    ASSERT_TRUE(here.core->Open(loop_.Now(), of_there).ok());
    here.on_closed = [&](const absl::Status& status) {
      EXPECT_FALSE(last) << status;
      loop_.Stop();
    };
    const size_t expected = static_cast<size_t>(20 * (connection + 1));
    size_t frames_left = here.Pick(60);
    here.on_message = [&] {
      if (last) {
        if (here.got.size() == expected && here.core->kept_bytes() == 0) loop_.Stop();
      } else if (frames_left-- == 0) {
        shutdown(raw_client_fd_, SHUT_RDWR);
      }
    };
    if (!last) {
      cut.After(std::chrono::milliseconds(here.Pick(30)),
                [&] { shutdown(raw_client_fd_, SHUT_RDWR); });
    }
    Open(here.Handlers());
    client_->Pump();
    Run();
    cut.Cancel();
    client_.reset();
    if (last) break;
  }
  const auto [got, sent] = OnServer<std::pair<std::vector<std::string>, std::vector<std::string>>>(
      [&] { return std::make_pair(there.got, there.sent); });
  EXPECT_TRUE(here.got == sent);
  EXPECT_TRUE(got == here.sent);
  server_.reset();
  OnServer<bool>([&] {
    carrier.reset();
    there.tick.Cancel();
    return true;
  });
}

TEST_F(RpcCarrierTest, AnInvalidFrameFromTheClientEndsTheCall) {
  ListenOnServer();
  std::optional<absl::Status> end;
  Frame fine;
  fine.payload = SharedBytes("fine");
  fine.header.size = 4;
  std::vector<Frame> frames(3, fine);
  frames[1].header.channel = static_cast<link::Channel>(9);
  size_t given = 0;
  Open({[&]() -> std::optional<Frame> {
          if (given == frames.size()) return std::nullopt;
          return frames[given++];
        },
        [](Frame) {},
        [&](absl::Status status) {
          end = std::move(status);
          loop_.Stop();
        }});
  Run();
  EXPECT_EQ(end->code(), absl::StatusCode::kDataLoss) << *end;
  EXPECT_EQ(ClosedOnServer().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(OnServer<size_t>([&] { return heard_.frames.size(); }), 1u);
}

TEST_F(RpcCarrierTest, AFrameBeforeTheGreetingIsAnsweredEndsTheCall) {
  greets_ = false;
  ListenOnServer();
  std::optional<absl::Status> end;
  std::optional<Frame> one = Frame();
  Open({[&] { return std::exchange(one, std::nullopt); }, [](Frame) {},
        [&](absl::Status status) {
          end = std::move(status);
          loop_.Stop();
        }});
  Run();
  EXPECT_EQ(end->code(), absl::StatusCode::kDataLoss) << *end;
  EXPECT_EQ(OnServer<std::string>([&] { return heard_.greeting; }), "good day");
  EXPECT_EQ(OnServer<size_t>([&] { return heard_.frames.size(); }), 0u);
}

TEST_F(RpcCarrierTest, TheServersWordIsTheEndAndItsFramesComeBefore) {
  service_.accept = [&](std::shared_ptr<ServerCarrier> carrier) {
    heard_.carrier = carrier;
    auto left = std::make_shared<int>(3);
    carrier->Listen({[this, left]() -> std::optional<Frame> {
                       if (--*left < 0) {
                         heard_.carrier->Finish(absl::AbortedError("as asked"));
                         return std::nullopt;
                       }
                       Frame frame;
                       frame.payload = SharedBytes(std::string(50'000, 'x'));
                       frame.header.size = 50'000;
                       return frame;
                     },
                     [](Frame) {}, [](absl::Status) {}});
    carrier->Start([this](const grpc::ByteBuffer&) { heard_.carrier->Greet(Words("greetings")); });
  };
  size_t frames = 0;
  std::optional<absl::Status> end;
  Open(link::CarrierHandlers{[]() -> std::optional<Frame> { return std::nullopt; },
                             [&](Frame) { ++frames; },
                             [&](absl::Status status) {
                               end = std::move(status);
                               loop_.Stop();
                             }});
  Run();
  EXPECT_EQ(greeting_, "greetings");
  EXPECT_EQ(frames, 3u);
  EXPECT_EQ(*end, absl::AbortedError("as asked"));
}

// What answers is not the agent of this build.
class OtherService final : public v1::Agent::WithRawCallbackMethod_Session<v1::Agent::Service> {
 public:
  struct Call final : grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
    Call() { StartWrite(&out); }
    void OnWriteDone(bool ok) override {
      if (ok && ++written < 2) return StartWrite(&out);
      StartRead(&in);
    }
    void OnReadDone(bool ok) override { ok ? StartRead(&in) : Finish(grpc::Status::OK); }
    void OnDone() override { delete this; }
    grpc::ByteBuffer in;
    grpc::ByteBuffer out = Words("not a frame, as anybody can see");
    int written = 0;
  };
  ServerCarrier::Reactor* Session(grpc::CallbackServerContext*) override { return new Call; }
};

TEST_F(RpcCarrierTest, AnInvalidFrameFromTheServerClosesTheClient) {
  OtherService service;
  auto pair = os::SocketPair();
  ASSERT_TRUE(pair.ok());
  std::optional<StreamServer> server;
  server.emplace(service, std::move(pair->first));
  channel_ = MakeChannel(std::move(pair->second));
  std::optional<absl::Status> end;
  Open(link::CarrierHandlers{[]() -> std::optional<Frame> { return std::nullopt; },
                             [](Frame) { ADD_FAILURE(); },
                             [&](absl::Status status) {
                               end = std::move(status);
                               loop_.Stop();
                             }});
  Run();
  EXPECT_EQ(greeting_, "not a frame, as anybody can see");
  EXPECT_EQ(end->code(), absl::StatusCode::kDataLoss) << *end;
  client_.reset();
  channel_.reset();
  server.reset();
}

// A fence of many nodes goes to all of them: what waits for slow ones must not be there once each.
TEST_F(RpcCarrierTest, WhatManyCallsSendExistsOnce) {
  constexpr int kCalls = 200;
  constexpr size_t kBytes = 4 << 20;
  const SharedBytes shared(std::string(kBytes, 'x'));
  struct One {
    os::UniqueFd far_end;  // nobody reads there
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<ClientCarrier> carrier;
    size_t sent = 0;
  };
  std::vector<std::unique_ptr<One>> all;
  const size_t before = ResidentBytes();
  for (int i = 0; i < kCalls; ++i) {
    auto pair = os::SocketPair();
    ASSERT_TRUE(pair.ok()) << pair.status();
    auto one = std::make_unique<One>();
    one->far_end = std::move(pair->first);
    one->channel = MakeChannel(std::move(pair->second));
    const auto next = [&shared, its = one.get()]() -> std::optional<Frame> {
      if (its->sent == kBytes) return std::nullopt;
      Frame frame{{}, shared.Sub(its->sent, link::kPieceBytes)};
      frame.header.size = link::kPieceBytes;
      its->sent += link::kPieceBytes;
      return frame;
    };
    one->carrier = std::make_unique<ClientCarrier>(
        loop_, one->channel, kMethod, Words("good day"), [](const grpc::ByteBuffer&) {},
        link::CarrierHandlers{next, [](Frame) {}, [](absl::Status) {}});
    all.push_back(std::move(one));
  }
  // By the time this is answered gRPC has had what it takes of all of them.
  ListenOnServer();
  client_.emplace(
      loop_, channel_, kMethod, Words("good day"),
      [this](const grpc::ByteBuffer&) { loop_.Stop(); },
      link::CarrierHandlers{[]() -> std::optional<Frame> { return std::nullopt; }, [](Frame) {},
                            [](absl::Status) {}});
  Run();
  EXPECT_LT(ResidentBytes(), before + 100 * (size_t{1} << 20))
      << kCalls << " copies would have " << kCalls * kBytes;
}

TEST_F(RpcCarrierTest, DestroyingTheClientClosesTheServer) {
  ListenOnServer();
  std::optional<Frame> one = Frame();
  Open(link::CarrierHandlers{[&] { return std::exchange(one, std::nullopt); }, [](Frame) {},
                             [](absl::Status) { ADD_FAILURE(); }});
  const TimePoint until = Clock::now() + kCarrierDeadline;
  while (OnServer<bool>([&] { return heard_.frames.empty(); })) {
    ASSERT_LT(Clock::now(), until);
    loop_.context().restart();
    loop_.context().poll();
  }
  client_.reset();
  EXPECT_TRUE(ClosedOnServer().ok());
}

}  // namespace
}  // namespace dtrain::rpc
