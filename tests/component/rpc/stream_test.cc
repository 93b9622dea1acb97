// SPDX-License-Identifier: Apache-2.0
// gRPC over a socket pair, both ends on loops of their own.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "common/loop/loop.h"
#include "common/os/fd.h"
#include "common/rpc/channel.h"
#include "common/rpc/client_stream.h"
#include "common/rpc/server_stream.h"
#include "dtrain/v1/agent.grpc.pb.h"
#include "tests/component/rpc/echo.h"

namespace dtrain::rpc {
namespace {

constexpr Duration kDeadline = std::chrono::seconds(20);
// A few of them are all that gRPC and the socket take ahead of the reader. Under ThreadSanitizer a
// megabyte takes 50 ms.
constexpr size_t kChunk = 256 << 10;

// Sends back what it hears; sends `log_chunks` of kChunk.
class EchoService final : public v1::Agent::WithRawCallbackMethod_Session<
                              v1::Agent::WithRawCallbackMethod_Logs<v1::Agent::Service>> {
 public:
  using Writer = ServerWriter<v1::LogChunk>;
  explicit EchoService(loop::Loop& loop) : loop_(loop) {}

  ServerCarrier::Reactor* Session(grpc::CallbackServerContext*) override {
    return EchoCall::New(loop_, absl::AbortedError("as asked"), [this] { closed = true; });
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Logs(grpc::CallbackServerContext*,
                                                   const grpc::ByteBuffer* request) override {
    return Writer::New<v1::LogsRequest>(
        loop_, *request, [this](std::shared_ptr<Writer> writer, const v1::LogsRequest&) {
          writer_ = writer;
          WriteNext();
        });
  }
  void WriteNext() {
    if (written >= log_chunks) {
      writer_->Finish(absl::OkStatus());
      return;
    }
    v1::LogChunk chunk;
    chunk.set_offset(static_cast<uint64_t>(written));
    chunk.set_data(std::string(kChunk, 'x'));
    writer_->Write(chunk, [this](bool ok) {
      if (!ok) {
        if (stubborn) loop_.Post([this] { WriteOrEnd(); });
        return;
      }
      ++written;
      WriteNext();
    });
  }
  void WriteOrEnd() {
    if (writer_->gone()) {
      closed = true;
    } else {
      WriteNext();
    }
  }
  std::atomic<bool> closed = false;
  std::atomic<int> written = 0;
  int log_chunks = 0;
  bool stubborn = false;  // goes on writing when the client is gone

 private:
  loop::Loop& loop_;
  std::shared_ptr<Writer> writer_;
};

class RpcStream : public ::testing::Test {
 protected:
  RpcStream() : service_(server_loop_) {
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok());
    server_.emplace(service_, std::move(pair->first));
    raw_client_fd_ = pair->second.get();
    channel_ = MakeChannel(std::move(pair->second));
    stub_ = v1::Agent::NewStub(channel_);
    server_thread_ = std::thread([this] { server_loop_.Run(); });
  }
  ~RpcStream() override {
    channel_.reset();
    stub_.reset();
    server_.reset();
    // After what the last calls have posted.
    server_loop_.Post([this] { server_loop_.Stop(); });
    server_thread_.join();
  }
  void Run() {
    loop::Timer deadline(loop_);
    deadline.After(kDeadline, [this] {
      timed_out_ = true;
      loop_.Stop();
    });
    loop_.Run();
    ASSERT_FALSE(timed_out_);
  }
  loop::Loop server_loop_;
  loop::Loop loop_;
  EchoService service_;
  std::optional<StreamServer> server_;
  std::thread server_thread_;
  int raw_client_fd_ = -1;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Agent::Stub> stub_;
  bool timed_out_ = false;
};

TEST_F(RpcStream, MessagesArriveInOrderAndTheStatusAtTheEnd) {
  constexpr int kCount = 1000;
  int got = 0;
  std::optional<absl::Status> end;
  std::optional<Chat> chat;
  chat.emplace(
      loop_, channel_,
      [&](const std::string& text) {
        EXPECT_EQ(text, std::to_string(got));
        if (++got == kCount) chat->Say("bye");
      },
      [&](absl::Status status) {
        end = status;
        loop_.Stop();
      });
  for (int i = 0; i < kCount; ++i) chat->Say(std::to_string(i));
  Run();
  EXPECT_EQ(got, kCount);
  EXPECT_EQ(*end, absl::AbortedError("as asked"));
}

TEST_F(RpcStream, ABrokenStreamClosesTheCall) {
  std::optional<absl::Status> end;
  Chat chat(
      loop_, channel_, [&](const std::string&) { shutdown(raw_client_fd_, SHUT_RDWR); },
      [&](absl::Status status) {
        end = status;
        loop_.Stop();
      });
  chat.Say("break");
  Run();
  EXPECT_EQ(end->code(), absl::StatusCode::kUnavailable);
}

TEST_F(RpcStream, AReaderThatDoesNotAskHoldsTheWriterBackAndControlFlowsOn) {
  service_.log_chunks = 200;
  int chunks = 0;
  std::optional<absl::Status> end;
  v1::LogsRequest logs_request;
  std::optional<ClientReader<v1::LogChunk>> reader;
  int beats = 0;
  std::optional<Chat> chat;
  chat.emplace(
      loop_, channel_,
      [&](const std::string&) {
        if (++beats < 100) return chat->Say("beat");
        // A hundred round trips later the unread logs have not run ahead.
        EXPECT_EQ(chunks, 1);
        EXPECT_LT(service_.written, 100);
        reader->Next();
      },
      [](absl::Status) {});
  reader.emplace(
      loop_,
      [&](auto* context, auto* reactor) { stub_->async()->Logs(context, &logs_request, reactor); },
      [&](v1::LogChunk chunk) {
        EXPECT_EQ(chunk.offset(), static_cast<uint64_t>(chunks));
        ++chunks;
        chunks == 1 ? chat->Say("beat") : reader->Next();
      },
      [&](absl::Status status) {
        end = status;
        loop_.Stop();
      });
  Run();
  EXPECT_EQ(chunks, 200);
  EXPECT_TRUE(end->ok()) << *end;
}

TEST_F(RpcStream, DestroyingTheClientEndsTheCallOnTheServer) {
  {
    Chat chat(
        loop_, channel_, [&](const std::string&) { loop_.Stop(); }, [](const absl::Status&) {});
    chat.Say("here");
    Run();
  }
  auto until = Clock::now() + kDeadline;
  while (!service_.closed && Clock::now() < until) std::this_thread::yield();
  EXPECT_TRUE(service_.closed);
}

TEST_F(RpcStream, WritesAfterTheClientCancelledAreRefusedUntilTheEnd) {
  service_.log_chunks = 1000;
  service_.stubborn = true;
  v1::LogsRequest request;
  {
    ClientReader<v1::LogChunk> reader(
        loop_,
        [&](auto* context, auto* reactor) { stub_->async()->Logs(context, &request, reactor); },
        [&](v1::LogChunk) { loop_.Stop(); }, [](absl::Status) {});
    Run();
  }
  auto until = Clock::now() + kDeadline;
  while (!service_.closed && Clock::now() < until) std::this_thread::yield();
  EXPECT_TRUE(service_.closed);
}

}  // namespace
}  // namespace dtrain::rpc
