// SPDX-License-Identifier: Apache-2.0
// gRPC over TLS over TCP, as between a launcher and a resident agent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/loop/loop.h"
#include "common/rpc/channel.h"
#include "common/rpc/client_stream.h"
#include "common/rpc/server_stream.h"
#include "common/tls/stream.h"
#include "dtrain/v1/agent.grpc.pb.h"
#include "tests/component/rpc/echo.h"
#include "tests/component/tls/authority.h"

namespace dtrain::rpc {
namespace {

using testing::HasSubstr;

constexpr Duration kDeadline = std::chrono::seconds(60);
constexpr int kChunks = 50;

// Sends back what it hears, ends at "bye"; sends `kChunks` of a megabyte as logs.
class EchoService final : public v1::Agent::WithRawCallbackMethod_Session<
                              v1::Agent::WithRawCallbackMethod_Logs<v1::Agent::Service>> {
 public:
  using Writer = ServerWriter<v1::LogChunk>;
  explicit EchoService(loop::Loop& loop) : loop_(loop) {}

  ServerCarrier::Reactor* Session(grpc::CallbackServerContext*) override {
    return EchoCall::New(loop_, absl::OkStatus(), [this] { closed = true; });
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Logs(grpc::CallbackServerContext*,
                                                   const grpc::ByteBuffer* request) override {
    return Writer::New<v1::LogsRequest>(
        loop_, *request, [this](std::shared_ptr<Writer> writer, const v1::LogsRequest&) {
          writer_ = writer;
          WriteNext();
        });
  }
  bool closed = false;

 private:
  void WriteNext() {
    if (written_ == kChunks) return writer_->Finish(absl::OkStatus());
    v1::LogChunk chunk;
    chunk.set_offset(static_cast<uint64_t>(written_++));
    chunk.set_data(std::string(1 << 20, 'x'));
    writer_->Write(chunk, [this](bool ok) {
      if (ok) WriteNext();
    });
  }

  loop::Loop& loop_;
  int written_ = 0;
  std::shared_ptr<Writer> writer_;
};

class RpcOverTls : public testing::Test {
 protected:
  ~RpcOverTls() override {
    stub_.reset();
    channel_.reset();
    server_.reset();
    // What gRPC's threads have handed over for deletion.
    loop_.context().poll();
  }

  template <typename Condition>
  bool Await(Condition condition) {
    const TimePoint deadline = Clock::now() + kDeadline;
    while (!condition()) {
      if (Clock::now() > deadline) return false;
      loop_.context().run_one_for(std::chrono::milliseconds(5));
    }
    return true;
  }

  static std::pair<os::UniqueFd, os::UniqueFd> Tcp() {
    os::UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* name = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener.get(), name, size), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), name, &size), 0);
    os::UniqueFd dialled(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(dialled.get(), name, size), 0);
    return {std::move(dialled),
            os::UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC))};
  }

  // As a launcher and an agent do: gRPC begins on each side when that side's TLS is ready.
  void Connect(const tls::Files& agent, const tls::Files& launcher) {
    const auto serving = tls::Context::Load(tls::Side::kServer, agent);
    const auto asking = tls::Context::Load(tls::Side::kClient, launcher);
    ASSERT_TRUE(serving.ok() && asking.ok()) << serving.status() << asking.status();
    auto [dialled, answered] = Tcp();
    agent_tcp_ = answered.get();
    agent_stream_ =
        tls::Stream::Accept(loop_, **serving, std::move(answered),
                            {[this](tls::Ready ready) {
                               EXPECT_EQ(ready.peer.name, "alice");
                               server_.emplace(service_, std::move(ready.plain));
                             },
                             [this](absl::Status why) { agent_closed_ = std::move(why); }});
    launcher_stream_ =
        tls::Stream::Connect(loop_, **asking, std::move(dialled), "gpu01", "h2",
                             {[this](tls::Ready ready) {
                                channel_ = MakeChannel(std::move(ready.plain));
                                stub_ = v1::Agent::NewStub(channel_);
                              },
                              [this](absl::Status why) { launcher_closed_ = std::move(why); }});
    ASSERT_TRUE(Await([&] { return stub_ != nullptr || launcher_closed_.has_value(); }));
  }

  tls::TemporaryDirectory directory_;
  tls::Authority lab_{directory_.path()};
  loop::Loop loop_;
  EchoService service_{loop_};
  int agent_tcp_ = -1;
  std::unique_ptr<tls::Stream> agent_stream_;
  std::unique_ptr<tls::Stream> launcher_stream_;
  std::optional<absl::Status> agent_closed_;
  std::optional<absl::Status> launcher_closed_;
  std::optional<StreamServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Agent::Stub> stub_;
};

TEST_F(RpcOverTls, ControlAndLogsFlowAndTheEndIsAnEnd) {
  Connect(lab_.Node("gpu01"), lab_.User("alice"));
  ASSERT_NE(stub_, nullptr) << *launcher_closed_;
  int64_t beats = 0;
  int chunks = 0;
  std::optional<absl::Status> session_end, logs_end;
  std::optional<Chat> session;
  std::optional<ClientReader<v1::LogChunk>> logs;
  v1::LogsRequest logs_request;
  session.emplace(
      loop_, channel_, [&](const std::string& text) { EXPECT_EQ(text, std::to_string(beats++)); },
      [&](absl::Status status) { session_end = std::move(status); });
  logs.emplace(
      loop_,
      [&](auto* context, auto* reactor) { stub_->async()->Logs(context, &logs_request, reactor); },
      [&](v1::LogChunk chunk) {
        EXPECT_EQ(chunk.offset(), static_cast<uint64_t>(chunks++));
        logs->Next();
      },
      [&](absl::Status status) { logs_end = std::move(status); });
  for (int i = 0; i < 1000; ++i) session->Say(std::to_string(i));
  ASSERT_TRUE(Await([&] { return beats == 1000 && logs_end.has_value(); }))
      << beats << " " << chunks;
  EXPECT_TRUE(logs_end->ok()) << *logs_end;
  EXPECT_EQ(chunks, kChunks);
  session->Say("bye");
  ASSERT_TRUE(Await([&] { return session_end.has_value(); }));
  EXPECT_TRUE(session_end->ok()) << *session_end;
  session.reset();
  logs.reset();
  stub_.reset();
  channel_.reset();
  // gRPC closes its descriptor, and that ends both streams in order.
  ASSERT_TRUE(Await([&] { return agent_closed_.has_value() && launcher_closed_.has_value(); }));
  EXPECT_TRUE(agent_closed_->ok()) << *agent_closed_;
  EXPECT_TRUE(launcher_closed_->ok()) << *launcher_closed_;
}

TEST_F(RpcOverTls, ACutConnectionEndsTheCallsOnBothSides) {
  Connect(lab_.Node("gpu01"), lab_.User("alice"));
  ASSERT_NE(stub_, nullptr) << *launcher_closed_;
  std::optional<absl::Status> end;
  Chat session(
      loop_, channel_, [&](const std::string&) { shutdown(agent_tcp_, SHUT_RDWR); },
      [&](absl::Status status) { end = std::move(status); });
  session.Say("break");
  ASSERT_TRUE(Await([&] { return end.has_value() && service_.closed; }));
  EXPECT_EQ(end->code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE(Await([&] { return agent_closed_.has_value() && launcher_closed_.has_value(); }));
  EXPECT_EQ(agent_closed_->code(), absl::StatusCode::kUnavailable) << *agent_closed_;
  EXPECT_EQ(launcher_closed_->code(), absl::StatusCode::kUnavailable) << *launcher_closed_;
}

// In TLS 1.3 the launcher is ready before the agent has looked at its certificate: the call fails
// as any broken connection does, and the stream knows why.
TEST_F(RpcOverTls, ARefusedLauncherLearnsWhy) {
  tls::Files agent = lab_.Node("gpu01");
  const tls::Files alice = lab_.User("alice");
  const std::string copy = directory_.path() + "/alice";
  std::filesystem::copy(lab_.dir() + "/users/alice", copy);
  lab_.Pki("revoke", "alice");
  agent.crl = lab_.crl();
  Connect(agent, {lab_.ca(), copy + "/user.crt", copy + "/user.key", ""});
  ASSERT_NE(stub_, nullptr) << *launcher_closed_;
  std::optional<absl::Status> end;
  Chat session(
      loop_, channel_, [](const std::string&) {},
      [&](absl::Status status) { end = std::move(status); });
  ASSERT_TRUE(Await([&] { return end.has_value() && launcher_closed_.has_value(); }));
  EXPECT_EQ(end->code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(launcher_closed_->code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(launcher_closed_->message(), "it rejected our certificate: it has been revoked");
  ASSERT_TRUE(Await([&] { return agent_closed_.has_value(); }));
  EXPECT_THAT(std::string(agent_closed_->message()), HasSubstr("(alice) was revoked"));
  EXPECT_FALSE(server_.has_value());
}

}  // namespace
}  // namespace dtrain::rpc
