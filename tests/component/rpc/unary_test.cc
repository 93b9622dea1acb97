// SPDX-License-Identifier: Apache-2.0
// Calls with one question and one answer, over a socket pair, both ends on one loop.
#include "common/rpc/unary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>

#include "common/os/fd.h"
#include "dtrain/v1/agent.grpc.pb.h"

namespace dtrain::rpc {
namespace {

constexpr Duration kDeadline = std::chrono::seconds(20);
using Server = ServerCall<v1::StopJobReply>;
using Client = ClientCall<v1::StopJobRequest, v1::StopJobReply>;

class Service final : public v1::Agent::WithRawCallbackMethod_StopJob<v1::Agent::Service> {
 public:
  Service(loop::Loop& loop, std::function<void(std::shared_ptr<Server>)> answer)
      : loop_(loop), answer_(std::move(answer)) {}
  grpc::ServerUnaryReactor* StopJob(grpc::CallbackServerContext*, const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* reply) override {
    return Server::New<v1::StopJobRequest>(
        loop_, *request, reply, [this](std::shared_ptr<Server> call, const v1::StopJobRequest&) {
          answer_(std::move(call));
        });
  }

 private:
  loop::Loop& loop_;
  const std::function<void(std::shared_ptr<Server>)> answer_;
};

class UnaryTest : public ::testing::Test {
 protected:
  void Serve(std::function<void(std::shared_ptr<Server>)> answer) {
    auto pair = os::SocketPair();
    ASSERT_TRUE(pair.ok());
    service_.emplace(loop_, std::move(answer));
    server_.emplace(*service_, std::move(pair->first));
    stub_ = v1::Agent::NewStub(MakeChannel(std::move(pair->second)));
  }
  void Ask(Duration patience = kDeadline, const v1::StopJobRequest& question = {}) {
    client_.emplace(
        loop_, question, patience,
        [this](auto* context, auto* request, auto* reply, auto* reactor) {
          stub_->async()->StopJob(context, request, reply, reactor);
        },
        [this](absl::StatusOr<v1::StopJobReply> reply) { got_ = std::move(reply); });
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

  loop::Loop loop_;
  std::optional<Service> service_;
  std::optional<StreamServer> server_;
  std::unique_ptr<v1::Agent::Stub> stub_;
  std::optional<Client> client_;
  std::optional<absl::StatusOr<v1::StopJobReply>> got_;
};

TEST_F(UnaryTest, AQuestionOfMoreThan64KiBIsRefused) {
  Serve([](const std::shared_ptr<Server>&) { FAIL() << "it was asked"; });
  v1::StopJobRequest question;
  question.set_job_id(std::string(kMostQuestion, 'x'));
  Ask(kDeadline, question);
  ASSERT_TRUE(Await([this] { return got_.has_value(); }));
  EXPECT_EQ(got_->status().code(), absl::StatusCode::kResourceExhausted) << got_->status();
}

TEST_F(UnaryTest, AnAnswerComesBack) {
  Serve([](const std::shared_ptr<Server>& call) {
    v1::StopJobReply reply;
    reply.set_was_running(true);
    call->Finish(reply);
    call->Finish(absl::AbortedError("too late"));
  });
  Ask();
  ASSERT_TRUE(Await([&] { return got_.has_value(); }));
  ASSERT_TRUE(got_->ok()) << got_->status();
  EXPECT_TRUE((*got_)->was_running());
}

TEST_F(UnaryTest, ARefusalComesBackWithItsWords) {
  Serve([](const std::shared_ptr<Server>& call) {
    call->Finish(absl::PermissionDeniedError("not yours"));
  });
  Ask();
  ASSERT_TRUE(Await([&] { return got_.has_value(); }));
  EXPECT_EQ(got_->status(), absl::PermissionDeniedError("not yours"));
}

TEST_F(UnaryTest, AHandleThatIsDroppedIsAnAnswer) {
  Serve([](const std::shared_ptr<Server>&) {});
  Ask();
  ASSERT_TRUE(Await([&] { return got_.has_value(); }));
  EXPECT_TRUE(absl::IsInternal(got_->status())) << got_->status();
}

TEST_F(UnaryTest, AnAnswerThatDoesNotComeIsNotWaitedForForEver) {
  std::shared_ptr<Server> held;
  Serve([&](std::shared_ptr<Server> call) { held = std::move(call); });
  Ask(std::chrono::milliseconds(200));
  ASSERT_TRUE(Await([&] { return got_.has_value(); }));
  EXPECT_TRUE(absl::IsDeadlineExceeded(got_->status())) << got_->status();
  if (held != nullptr) held->Finish(v1::StopJobReply());
}

TEST_F(UnaryTest, WhoGivesUpHearsNothing) {
  std::shared_ptr<Server> held;
  Serve([&](std::shared_ptr<Server> call) { held = std::move(call); });
  Ask();
  ASSERT_TRUE(Await([&] { return held != nullptr; }));
  client_.reset();
  held->Finish(v1::StopJobReply());
  Ask();  // its answer comes after all that is left of the first
  held.reset();
  ASSERT_TRUE(Await([&] { return held != nullptr; }));
  held->Finish(v1::StopJobReply());
  ASSERT_TRUE(Await([&] { return got_.has_value(); }));
  EXPECT_TRUE(got_->ok()) << got_->status();
}

TEST_F(UnaryTest, AServerThatGoesEndsTheCall) {
  std::shared_ptr<Server> held;
  Serve([&](std::shared_ptr<Server> call) { held = std::move(call); });
  Ask();
  ASSERT_TRUE(Await([&] { return held != nullptr; }));
  held->Finish(absl::UnavailableError("going"));
  ASSERT_TRUE(Await([&] { return got_.has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(got_->status())) << got_->status();
}

}  // namespace
}  // namespace dtrain::rpc
