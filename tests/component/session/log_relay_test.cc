// SPDX-License-Identifier: Apache-2.0
// A job's output on its way through the agent: its launcher calls over gRPC, its shepherd is
// played.
#include "agent/session/log_relay.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/client_stream.h"
#include "dtrain/v1/agent.grpc.pb.h"
#include "tests/component/session/log_shepherd.h"

namespace dtrain::session {
namespace {

using ::testing::HasSubstr;

constexpr auto kOut = v1::STREAM_KIND_STDOUT;

class LogsService final : public v1::Agent::WithRawCallbackMethod_Logs<v1::Agent::Service> {
 public:
  LogsService(loop::Loop& loop, std::optional<LogRelay>& relay) : loop_(loop), relay_(relay) {}
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Logs(grpc::CallbackServerContext*,
                                                   const grpc::ByteBuffer* request) override {
    return LogRelay::Writer::New<v1::LogsRequest>(
        loop_, *request, [this](std::shared_ptr<LogRelay::Writer> writer, const auto& asked) {
          relay_->Attach(std::move(writer), asked);
        });
  }

 private:
  loop::Loop& loop_;
  std::optional<LogRelay>& relay_;
};

class LogRelayTest : public ::testing::Test {
 protected:
  struct Launcher {
    std::string bytes;  // of rank 3
    std::vector<std::string> lost;
    std::optional<absl::Status> end;
    std::optional<rpc::ClientReader<v1::LogChunk>> reader;
    v1::LogsRequest request;
  };

  LogRelayTest() : service_(loop_, relay_) {
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok());
    server_.emplace(service_, std::move(pair->first));
    channel_ = rpc::MakeChannel(std::move(pair->second));
    stub_ = v1::Agent::NewStub(channel_);
    LogRelay::Handlers handlers;
    handlers.ask = [this](const v1::ReadLogs& ask) -> absl::StatusOr<os::UniqueFd> {
      if (!shepherd_lives_) return absl::UnavailableError("it is gone");
      asked_.push_back(ask);
      return sockets_.emplace_back().Take();
    };
    handlers.on_broken = [this](std::string why) { broken_ = std::move(why); };
    relay_.emplace(loop_, /*reclaim=*/true, std::move(handlers));
    for (const uint32_t rank : {3, 4}) {
      v1::RankOnNode& place = *report_.mutable_job()->add_ranks();
      place.set_rank(rank);
      place.set_pid(100 + rank);
    }
    relay_->Reported(report_);
  }
  ~LogRelayTest() override {
    relay_.reset();
    // The calls end on gRPC's threads, which post to the loop: it must outlive them.
    EXPECT_TRUE(Until([this] {
      return std::all_of(launchers_.begin(), launchers_.end(),
                         [](const Launcher& launcher) { return launcher.end.has_value(); });
    }));
    launchers_.clear();
    channel_.reset();
    stub_.reset();
    server_.reset();
    loop_.context().poll();
  }
  Launcher* Attach(uint64_t from = 0) {
    Launcher* const raw = &launchers_.emplace_back();
    v1::LogPosition& position = *raw->request.add_from();
    position.set_rank(3);
    position.set_stream(kOut);
    position.set_offset(from);
    raw->request.set_most_data(most_data_);
    raw->reader.emplace(
        loop_,
        [this, raw](auto* context, auto* reactor) {
          stub_->async()->Logs(context, &raw->request, reactor);
        },
        [raw](const v1::LogChunk& chunk) {
          if (!chunk.lost().empty()) raw->lost.push_back(chunk.lost());
          raw->bytes += chunk.data();
          raw->reader->Next();
        },
        [raw](absl::Status end) { raw->end = std::move(end); });
    const size_t before = sockets_.size();
    EXPECT_TRUE(Until([&] { return sockets_.size() > before || !shepherd_lives_; }));
    return raw;
  }
  void Size(uint64_t size) {
    report_.mutable_job()->mutable_ranks(0)->set_stdout_bytes(size);
    relay_->Reported(report_);
  }
  void Finish(uint64_t size) {
    v1::Finished finished;
    v1::LogEnd& end = *finished.add_logs();
    end.set_rank(3);
    end.set_stream(kOut);
    end.set_size(size);
    ASSERT_TRUE(relay_->Finished(finished).ok());
  }
  v1::ReadLogRequest Request(uint64_t offset, uint32_t limit, uint32_t rank = 3) {
    v1::ReadLogRequest request;
    request.set_rank(rank);
    request.set_stream(kOut);
    request.set_offset(offset);
    request.set_limit(limit);
    return request;
  }
  bool Until(const std::function<bool()>& holds, Duration limit = std::chrono::seconds(20)) {
    const TimePoint end = Clock::now() + limit;
    while (!holds()) {
      if (loop_.context().run_one_until(end) == 0) return holds();
    }
    return true;
  }

  loop::Loop loop_;
  std::optional<LogRelay> relay_;
  LogsService service_;
  std::optional<rpc::StreamServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Agent::Stub> stub_;
  bool shepherd_lives_ = true;
  std::list<Launcher> launchers_;
  v1::Report report_;
  uint32_t most_data_ = 0;
  std::vector<v1::ReadLogs> asked_;
  std::deque<LogShepherd> sockets_;
  std::string broken_;
};

TEST_F(LogRelayTest, TheLauncherGetsWhatTheShepherdSends) {
  const auto launcher = Attach(5);
  EXPECT_TRUE(asked_[0].reclaim());
  EXPECT_FALSE(asked_[0].has_one());
  EXPECT_EQ(asked_[0].from(0).offset(), 5u);
  const std::string large(link::kMostLogData, 'x');
  sockets_[0].Send(LogShepherd::Piece(3, 5, "hello"));
  ASSERT_TRUE(Until([&] { return launcher->bytes == "hello"; }));
  for (size_t at = 0; at < 20 * large.size(); at += large.size()) {
    const std::string piece = LogShepherd::Piece(3, 10 + at, large);
    for (size_t sent = 0; sent < piece.size();) {
      sent += sockets_[0].Offer(piece.substr(sent));
      loop_.context().poll();
    }
  }
  sockets_[0].Send(LogShepherd::EndOf(0, true));
  ASSERT_TRUE(Until([&] { return launcher->end.has_value(); }));
  EXPECT_TRUE(launcher->end->ok()) << *launcher->end;
  EXPECT_EQ(launcher->bytes.size(), 5 + 20 * large.size());
  EXPECT_EQ(sockets_[0].acked(), 21u);
}

TEST_F(LogRelayTest, ANewReaderTakesThePlaceOfTheOneBefore) {
  const auto first = Attach();
  const auto second = Attach();
  ASSERT_TRUE(Until([&] { return first->end.has_value(); }));
  EXPECT_TRUE(absl::IsAborted(*first->end)) << *first->end;
  char byte;
  EXPECT_EQ(read(sockets_[0].fd(), &byte, 1), 0) << "its socket was closed";
  sockets_[1].Send(LogShepherd::Piece(3, 0, "hello"));
  ASSERT_TRUE(Until([&] { return second->bytes == "hello"; }));
}

// The launcher leaves the job to another, which begins where this one was: from now on the shepherd
// forgets nothing that is only on its way.
TEST_F(LogRelayTest, FromKeepTakenOnTheShepherdKeepsWhatTheLauncherHasNotNamed) {
  const auto launcher = Attach();
  sockets_[0].Send(LogShepherd::Piece(3, 0, "hello"));
  ASSERT_TRUE(Until([&] { return launcher->bytes == "hello"; }));
  const v1::LogPositions forgotten = relay_->KeepTaken();
  ASSERT_EQ(forgotten.streams_size(), 1);
  EXPECT_EQ(forgotten.streams(0).rank(), 3u);
  EXPECT_EQ(forgotten.streams(0).offset(), 5u);
  ASSERT_TRUE(Until([&] { return asked_.size() == 2; }));
  EXPECT_FALSE(asked_[1].reclaim());
  ASSERT_EQ(asked_[1].from_size(), 1);
  EXPECT_EQ(asked_[1].from(0).offset(), 5u);
  sockets_[1].Send(LogShepherd::Piece(3, 5, " world") + LogShepherd::EndOf(0, true));
  ASSERT_TRUE(Until([&] { return launcher->end.has_value(); }));
  EXPECT_TRUE(launcher->end->ok()) << *launcher->end;
  EXPECT_EQ(launcher->bytes, "hello world");
  EXPECT_EQ(relay_->KeepTaken().streams(0).offset(), 11u);
  EXPECT_EQ(asked_.size(), 2u);
}

// While the node fails, which has a message of its own.
TEST_F(LogRelayTest, WhatADeadShepherdHadNotSentIsReported) {
  const auto launcher = Attach();
  Size(1000);
  sockets_[0].Send(LogShepherd::Piece(3, 0, "hello"));
  sockets_[0].Die();
  ASSERT_TRUE(Until([&] { return launcher->end.has_value(); }));
  EXPECT_TRUE(launcher->end->ok()) << *launcher->end;
  EXPECT_EQ(launcher->bytes, "hello");
  ASSERT_EQ(launcher->lost.size(), 1u);
  EXPECT_EQ(launcher->lost[0],
            "output of rank 3 after byte 5 is lost: its shepherd, the process that kept it, was "
            "killed (at least 995 bytes)");
}

TEST_F(LogRelayTest, WhatItHadNotReportedMayBeLost) {
  const auto launcher = Attach();
  sockets_[0].Die();
  ASSERT_TRUE(Until([&] { return launcher->end.has_value(); }));
  EXPECT_TRUE(launcher->end->ok()) << *launcher->end;
  ASSERT_EQ(launcher->lost.size(), 1u);
  EXPECT_THAT(launcher->lost[0], HasSubstr("may be lost"));
}

// Nothing else would tell that it is not all.
TEST_F(LogRelayTest, AfterTheEndOfTheWorkersLostOutputIsAFault) {
  const auto launcher = Attach();
  Finish(1000);
  sockets_[0].Send(LogShepherd::Piece(3, 0, "hello"));
  sockets_[0].Die();
  ASSERT_TRUE(Until([&] { return launcher->end.has_value(); }));
  EXPECT_TRUE(absl::IsDataLoss(*launcher->end)) << *launcher->end;
  EXPECT_THAT(launcher->end->message(), HasSubstr("output of rank 3 after byte 5 is lost"));
  EXPECT_THAT(launcher->end->message(), HasSubstr("(995 bytes)"));
}

TEST_F(LogRelayTest, AShepherdThatIsGoneAndHadSaidAllIsWell) {
  Finish(5);
  shepherd_lives_ = false;
  const auto launcher = Attach(5);
  ASSERT_TRUE(Until([&] { return launcher->end.has_value(); }));
  EXPECT_TRUE(launcher->end->ok()) << *launcher->end;
  const auto late = Attach(2);
  ASSERT_TRUE(Until([&] { return late->end.has_value(); }));
  EXPECT_TRUE(absl::IsDataLoss(*late->end)) << *late->end;
}

TEST_F(LogRelayTest, WhatTheShepherdCannotReadIsAFault) {
  const auto launcher = Attach();
  Finish(5);
  sockets_[0].Send(LogShepherd::EndOf(0, true, "output of rank 3 after byte 0 is lost: disk\n"));
  ASSERT_TRUE(Until([&] { return launcher->end.has_value(); }));
  EXPECT_TRUE(absl::IsDataLoss(*launcher->end));
  EXPECT_EQ(launcher->end->message(), "output of rank 3 after byte 0 is lost: disk\\n");
}

TEST_F(LogRelayTest, AShepherdThatBreaksARuleIsReported) {
  Attach();
  sockets_[0].Send(LogShepherd::FrameOf("xx", link::Channel::kJob));
  ASSERT_TRUE(Until([&] { return !broken_.empty(); }));
  EXPECT_THAT(broken_, HasSubstr("another channel"));
}

TEST_F(LogRelayTest, TheEndOfOutputThatIsNotHereIsRefused) {
  v1::Finished finished;
  finished.add_logs()->set_rank(5);
  finished.mutable_logs(0)->set_stream(kOut);
  EXPECT_EQ(relay_->Finished(finished).message(),
            "it reported output 1 of rank 5, which is not on this node");
  finished.mutable_logs(0)->set_rank(4);
  EXPECT_TRUE(relay_->Finished(finished).ok());
  finished.mutable_logs(0)->set_stream(static_cast<v1::StreamKind>(9));
  EXPECT_FALSE(relay_->Finished(finished).ok());
}

// Many launchers' links share what may wait.
TEST_F(LogRelayTest, HowMuchAtOnceIsTheLaunchersToSay) {
  most_data_ = 17;
  Attach();
  EXPECT_EQ(asked_[0].most_data(), 17u);
}

// ---- others than the launcher -------------------------------------------------------------------

class ReadTest : public LogRelayTest {
 protected:
  void Read(const v1::ReadLogRequest& request) {
    relay_->Read(request,
                 [this](absl::StatusOr<v1::LogPiece> piece) { answer_ = std::move(piece); });
  }
  const absl::StatusOr<v1::LogPiece>& Answer() {
    EXPECT_TRUE(Until([&] { return answer_.has_value(); }));
    return *answer_;
  }
  std::optional<absl::StatusOr<v1::LogPiece>> answer_;
};

TEST_F(ReadTest, APieceIsPutTogether) {
  Read(Request(2, 100));
  EXPECT_EQ(asked_[0].one().offset(), 2u);
  EXPECT_EQ(asked_[0].limit(), 100u);
  EXPECT_FALSE(asked_[0].reclaim());
  sockets_[0].Send(LogShepherd::Piece(3, 2, "one ") + LogShepherd::Piece(3, 6, "two") +
                   LogShepherd::EndOf(9, true));
  ASSERT_TRUE(Answer().ok()) << Answer().status();
  EXPECT_EQ(Answer()->data(), "one two");
  EXPECT_EQ(Answer()->offset(), 2u);
  EXPECT_EQ(Answer()->size(), 9u);
  EXPECT_TRUE(Answer()->ended());
}

TEST_F(ReadTest, WhatWasDroppedMeanwhileLeavesNoGapInIt) {
  Read(Request(0, 100));
  sockets_[0].Send(LogShepherd::Piece(3, 0, "one ") + LogShepherd::Piece(3, 40, "two") +
                   LogShepherd::EndOf(43, false));
  ASSERT_TRUE(Answer().ok()) << Answer().status();
  EXPECT_EQ(Answer()->data(), "two");
  EXPECT_EQ(Answer()->offset(), 40u);
  EXPECT_FALSE(Answer()->ended());
}

TEST_F(ReadTest, BehindTheEndThereIsNothingYet) {
  Read(Request(~uint64_t{0}, 10));
  sockets_[0].Send(LogShepherd::EndOf(5, false));
  ASSERT_TRUE(Answer().ok()) << Answer().status();
  EXPECT_EQ(Answer()->offset(), 5u);
}

TEST_F(ReadTest, OfNoBytesOnlyTheSizeIsTold) {
  Read(Request(0, 0));
  sockets_[0].Send(LogShepherd::Piece(3, 0, "x") + LogShepherd::EndOf(5, false));
  ASSERT_TRUE(Answer().ok()) << Answer().status();
  EXPECT_EQ(Answer()->data(), "");
  EXPECT_EQ(Answer()->size(), 5u);
}

TEST_F(ReadTest, MoreThanWasAskedForBreaksIt) {
  Read(Request(0, 6));
  sockets_[0].Send(LogShepherd::Piece(3, 0, "1234") + LogShepherd::Piece(3, 4, "567"));
  EXPECT_FALSE(Answer().ok());
  EXPECT_THAT(broken_, HasSubstr("more output than it was asked for"));
}

TEST_F(ReadTest, WhatIsNotThereIsRefused) {
  Read(Request(0, 1, /*rank=*/5));
  EXPECT_TRUE(absl::IsNotFound(Answer().status())) << Answer().status();
  v1::ReadLogRequest other = Request(0, 1);
  other.set_stream(static_cast<v1::StreamKind>(9));
  answer_.reset();
  Read(other);
  EXPECT_TRUE(absl::IsNotFound(Answer().status())) << Answer().status();
  answer_.reset();
  shepherd_lives_ = false;
  Read(Request(0, 1));
  EXPECT_TRUE(absl::IsUnavailable(Answer().status())) << Answer().status();
}

TEST_F(ReadTest, ADiskThatCannotBeReadIsTold) {
  Read(Request(0, 10));
  sockets_[0].Send(LogShepherd::EndOf(5, false, "output of rank 3 after byte 0 is lost: EIO"));
  EXPECT_TRUE(absl::IsDataLoss(Answer().status())) << Answer().status();
  EXPECT_EQ(broken_, "") << "which is no fault of the shepherd's";
}

TEST_F(ReadTest, ASessionThatEndsAnswersItsReaders) {
  Read(Request(0, 10));
  relay_.reset();
  ASSERT_TRUE(answer_.has_value());
  EXPECT_TRUE(absl::IsUnavailable(answer_->status())) << answer_->status();
}

TEST_F(ReadTest, ReadersAreLimitedAndThoseThatLeftDoNotCount) {
  std::vector<std::shared_ptr<LogSource>> readers;
  int over = 0;
  const auto handlers = [&] {
    LogSource::Handlers out;
    out.on_piece = [](const v1::LogPosition&, const link::SharedBytes&) {};
    out.on_over = [&](const absl::StatusOr<v1::LogsEnd>&) { ++over; };
    return out;
  };
  for (size_t i = 0; i < LogRelay::kMostOthers; ++i) {
    auto reader = relay_->Follow(Request(0, 0), handlers());
    ASSERT_TRUE(reader.ok()) << reader.status();
    readers.push_back(*std::move(reader));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(relay_->Follow(Request(0, 0), handlers()).status()));
  Read(Request(0, 10));
  EXPECT_TRUE(absl::IsResourceExhausted(Answer().status()));
  readers.pop_back();
  EXPECT_TRUE(relay_->Follow(Request(0, 0), handlers()).ok());
  relay_.reset();
  EXPECT_EQ(over, static_cast<int>(LogRelay::kMostOthers) - 1) << "of those that are held";
}

}  // namespace
}  // namespace dtrain::session
