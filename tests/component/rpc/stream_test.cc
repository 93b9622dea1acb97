// SPDX-License-Identifier: Apache-2.0
// gRPC over a socket pair, both ends on loops of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/loop/loop.h"
#include "common/os/fd.h"
#include "common/rpc/channel.h"
#include "common/rpc/client_stream.h"
#include "common/rpc/server_stream.h"
#include "dtrain/v1/agent.grpc.pb.h"

namespace dtrain::rpc {
namespace {

constexpr Duration kDeadline = std::chrono::seconds(20);
constexpr char kSessionMethod[] = "/dtrain.v1.Agent/Session";
// A few of them are all that gRPC and the socket take ahead of the reader. Under ThreadSanitizer a
// megabyte takes 50 ms.
constexpr size_t kChunk = 256 << 10;

// Sends bytes that are no message, until the client goes.
class Babbler final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Babbler() { StartWrite(&bytes_); }
  void OnCancel() override { Finish(grpc::Status::CANCELLED); }
  void OnDone() override { delete this; }

 private:
  const grpc::Slice slice_{"\xff\xff\xff"};
  const grpc::ByteBuffer bytes_{&slice_, 1};
};

// Answers each heartbeat with a heartbeat of the same number; sends `log_chunks` of kChunk.
class EchoService final : public v1::Agent::WithRawCallbackMethod_Session<
                              v1::Agent::WithRawCallbackMethod_Logs<v1::Agent::Service>> {
 public:
  using Stream = ServerStream<v1::SessionRequest, v1::SessionEvent>;
  using Writer = ServerWriter<v1::LogChunk>;
  explicit EchoService(loop::Loop& loop) : loop_(loop) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Session(
      grpc::CallbackServerContext* context) override {
    if (nonsense) return new Babbler();
    return Stream::New(loop_, context, queued, [this](std::shared_ptr<Stream> stream) {
      stream_ = stream;
      stream->Start(
          [this](v1::SessionRequest request) {
            if (request.has_goodbye()) {
              stream_->Finish(absl::AbortedError("as asked"));
              return;
            }
            v1::SessionEvent event;
            *event.mutable_heartbeat() = request.heartbeat();
            stream_->Send(event);
            if (warnings == 0) return;
            event.mutable_warning()->set_message(std::string(1 << 20, 'x'));
            for (int i = 0; i < warnings; ++i) stream_->Send(event);
          },
          [this] {
            closed = true;
            stream_->Finish(absl::OkStatus());
          });
    });
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
  int warnings = 0;  // of a megabyte, behind each heartbeat
  std::shared_ptr<SharedLimit> queued = std::make_shared<SharedLimit>(kMostQueued);
  bool nonsense = false;  // sends what is no message
  bool stubborn = false;  // goes on writing when the client is gone

 private:
  loop::Loop& loop_;
  std::shared_ptr<Stream> stream_;
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
  // What `task` returns on the server's loop.
  bool OnServer(std::function<bool()> task) {
    std::packaged_task<bool()> asked(std::move(task));
    std::future<bool> answer = asked.get_future();
    server_loop_.Post([asked = std::move(asked)]() mutable { asked(); });
    return answer.get();
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
  std::vector<int64_t> got;
  std::optional<absl::Status> end;
  ClientStream<v1::SessionRequest, v1::SessionEvent> stream(
      loop_, channel_, kSessionMethod,
      [&](v1::SessionEvent e) { got.push_back(e.heartbeat().unix_nanos()); },
      [&](absl::Status status) {
        end = status;
        loop_.Stop();
      });
  for (int i = 0; i < kCount; ++i) {
    v1::SessionRequest request;
    request.mutable_heartbeat()->set_unix_nanos(i);
    stream.Send(request);
  }
  v1::SessionRequest bye;
  bye.mutable_goodbye();
  stream.Send(bye);
  Run();
  ASSERT_EQ(got.size(), static_cast<size_t>(kCount));
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(got[static_cast<size_t>(i)], i);
  EXPECT_EQ(*end, absl::AbortedError("as asked"));
}

TEST_F(RpcStream, WhatWaitsForAClientIsBounded) {
  service_.queued = std::make_shared<SharedLimit>(20 << 20);
  service_.warnings = 30;
  std::optional<absl::Status> end;
  ClientStream<v1::SessionRequest, v1::SessionEvent> stream(
      loop_, channel_, kSessionMethod, [](const v1::SessionEvent&) {},
      [&](absl::Status status) {
        end = status;
        loop_.Stop();
      });
  v1::SessionRequest request;
  request.mutable_heartbeat();
  stream.Send(request);
  Run();
  EXPECT_EQ(end->code(), absl::StatusCode::kCancelled) << *end;
  // The server's end may come after the client's.
  const TimePoint until = Clock::now() + kDeadline;
  bool free = false;
  while (!free && Clock::now() < until) {
    free = OnServer([this] { return service_.queued->Add(20 << 20); });
  }
  EXPECT_TRUE(free) << "it is given back";
}

TEST_F(RpcStream, AMessageOfTooManyObjectsEndsTheCall) {
  std::optional<absl::Status> end;
  ClientStream<v1::SessionRequest, v1::SessionEvent> stream(
      loop_, channel_, kSessionMethod, [](const v1::SessionEvent&) {},
      [&](absl::Status status) {
        end = status;
        loop_.Stop();
      });
  v1::SessionRequest request;
  for (int i = 0; i < 1'200'000; ++i) request.mutable_start()->add_workers();
  stream.Send(request);
  Run();
  EXPECT_EQ(end->code(), absl::StatusCode::kResourceExhausted) << *end;
  // The server's end may come after the client's.
  const TimePoint until = Clock::now() + kDeadline;
  while (!service_.closed && Clock::now() < until) std::this_thread::yield();
  EXPECT_TRUE(service_.closed);
}

// An agent that has been taken over may send anything.
TEST_F(RpcStream, NonsenseFromTheServerEndsTheCall) {
  service_.nonsense = true;
  std::optional<absl::Status> end;
  ClientStream<v1::SessionRequest, v1::SessionEvent> stream(
      loop_, channel_, kSessionMethod, [](const v1::SessionEvent&) {},
      [&](absl::Status status) {
        end = status;
        loop_.Stop();
      });
  v1::SessionRequest request;
  request.mutable_heartbeat();
  stream.Send(request);
  Run();
  EXPECT_EQ(end->code(), absl::StatusCode::kInvalidArgument) << *end;
  EXPECT_THAT(std::string(end->message()), testing::HasSubstr("SessionEvent"));
}

TEST_F(RpcStream, ABrokenStreamClosesTheCall) {
  std::optional<absl::Status> end;
  ClientStream<v1::SessionRequest, v1::SessionEvent> stream(
      loop_, channel_, kSessionMethod,
      [&](v1::SessionEvent) { shutdown(raw_client_fd_, SHUT_RDWR); },
      [&](absl::Status status) {
        end = status;
        loop_.Stop();
      });
  v1::SessionRequest request;
  request.mutable_heartbeat();
  stream.Send(request);
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
  ClientStream<v1::SessionRequest, v1::SessionEvent> stream(
      loop_, channel_, kSessionMethod,
      [&](v1::SessionEvent) {
        if (++beats < 100) {
          v1::SessionRequest request;
          request.mutable_heartbeat();
          stream.Send(request);
          return;
        }
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
        if (chunks == 1) {
          v1::SessionRequest request;
          request.mutable_heartbeat();
          stream.Send(request);
        } else {
          reader->Next();
        }
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
    ClientStream<v1::SessionRequest, v1::SessionEvent> stream(
        loop_, channel_, kSessionMethod, [&](v1::SessionEvent) { loop_.Stop(); },
        [](absl::Status) {});
    v1::SessionRequest request;
    request.mutable_heartbeat();
    stream.Send(request);
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
