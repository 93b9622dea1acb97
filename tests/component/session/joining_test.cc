// SPDX-License-Identifier: Apache-2.0
// How a shepherd is asked to keep its job for the next agent. The test plays the shepherd.
#include "agent/session/joining.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/session/job_directory.h"
#include "common/base/clock.h"
#include "common/loop/frame_channel.h"
#include "common/os/fd.h"
#include "tests/component/session/no_processes.h"

namespace dtrain::session {
namespace {

using ::testing::HasSubstr;

class ToBeLeftTest : public ::testing::Test {
 protected:
  // Of the socket to the shepherd; the kernel doubles it. Long requests are longer.
  static constexpr int kSendBuffer = 64 << 10;
  static constexpr size_t kLong = 1 << 20;

  ToBeLeftTest() {
    char name[] = "/tmp/dtrain-joining-XXXXXX";
    state_ = mkdtemp(name);
    hello_.set_job_id("dtrain-2e");
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok());
    EXPECT_EQ(setsockopt(pair->first.get(), SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof(int)), 0);
    channel_.emplace(loop_, std::make_unique<NoProcesses>(std::move(pair->first)));
    end_ = std::move(pair->second);
    joining_.emplace(
        agent_, hello_, holdings_, *channel_,
        Joining::Handlers{[](const v1::SessionEvent&) {}, [](const std::vector<v1::Gpu>&) {}});
  }
  ~ToBeLeftTest() override { std::filesystem::remove_all(state_); }

  absl::Status Prepare() { return joining_->PrepareToBeLeft(state_, v1::Reserve()); }
  std::string Folder() const { return absl::StrCat(state_, "/kept/dtrain-2e.0.", owner_.uid); }

  // The shepherd reads from now on.
  void StartShepherd() {
    shepherd_.emplace(
        loop_, std::move(end_),
        [this](absl::string_view text, const os::UniqueFd& fd) { OnRequest(text, fd); },
        [](const absl::Status&) {});
  }
  void OnRequest(absl::string_view text, const os::UniqueFd& fd) {
    v1::ShepherdRequest request;
    ASSERT_TRUE(request.ParseFromString(std::string(text)));
    if (request.has_release()) is_last_ = true;
    // The test sends others, without a log.
    if (request.keep_running().log().empty()) return;
    ++asked_;
    log_ = request.keep_running().log();
    has_socket_ = static_cast<bool>(fd);
  }
  // The shepherd has read all that was sent to it so far.
  void AwaitAll() {
    is_last_ = false;
    v1::ShepherdRequest last;
    last.mutable_release();
    ASSERT_TRUE(channel_->Send(last).ok());
    const TimePoint end = Clock::now() + std::chrono::seconds(20);
    while (!is_last_ && loop_.context().run_one_until(end) != 0) continue;
    ASSERT_TRUE(is_last_);
  }

  loop::Loop loop_;
  std::string state_;
  Readers readers_;
  Reservations reservations_;
  v1::Hello hello_;
  const spawn::Owner owner_{geteuid(), "alice"};
  const Surroundings agent_{loop_, readers_, reservations_, {}, ""};
  Holdings holdings_{agent_, owner_, hello_};
  std::optional<ShepherdChannel> channel_;
  std::optional<Joining> joining_;
  os::UniqueFd end_;  // the shepherd's, until it reads
  std::optional<loop::FrameChannel> shepherd_;
  int asked_ = 0;
  std::string log_;
  bool has_socket_ = false;
  bool is_last_ = false;
};

TEST_F(ToBeLeftTest, TheShepherdGetsALogAndASocketOnce) {
  StartShepherd();
  EXPECT_EQ(Prepare(), absl::OkStatus());
  EXPECT_EQ(Prepare(), absl::OkStatus());
  AwaitAll();
  EXPECT_EQ(asked_, 1);
  EXPECT_EQ(log_, state_ + "/agent.log");
  EXPECT_TRUE(has_socket_);
  EXPECT_TRUE(std::filesystem::exists(Folder()));
}

TEST_F(ToBeLeftTest, AShepherdThatReadsNothingIsRefusedBeforeItIsAsked) {
  v1::ShepherdRequest unread;
  unread.mutable_keep_running()->mutable_hello()->set_probe_token(std::string(kLong, 'x'));
  ASSERT_TRUE(channel_->Send(unread).ok());
  ASSERT_FALSE(channel_->has_all());
  const absl::Status refused = Prepare();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("reads nothing"));
  EXPECT_FALSE(std::filesystem::exists(Folder()));
  StartShepherd();
  AwaitAll();
  EXPECT_EQ(asked_, 0);

  EXPECT_EQ(Prepare(), absl::OkStatus()) << "it reads again";
  AwaitAll();
  EXPECT_EQ(asked_, 1);
}

TEST_F(ToBeLeftTest, AShepherdThatDoesNotTakeTheRequestIsRefusedAndTheFolderGoes) {
  hello_.set_launcher(std::string(kLong, 'x'));
  const absl::Status refused = Prepare();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("reads nothing"));
  EXPECT_FALSE(holdings_.has_directory());
  EXPECT_FALSE(std::filesystem::exists(Folder()));
}

TEST_F(ToBeLeftTest, AFolderThatAnotherAgentMadeIsRefusedAndStays) {
  StartShepherd();
  ASSERT_TRUE(JobDirectory::MakeHidden(state_, {owner_.uid, "dtrain-2e", 0}).ok());
  const absl::Status refused = Prepare();
  EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
  AwaitAll();
  EXPECT_EQ(asked_, 0);
  EXPECT_TRUE(std::filesystem::exists(Folder()));
}

TEST_F(ToBeLeftTest, WithoutAPlaceForTheFolderTheShepherdIsNotAsked) {
  StartShepherd();
  std::ofstream(state_ + "/kept") << "a file";
  const absl::Status refused = Prepare();
  EXPECT_THAT(std::string(refused.message()), HasSubstr("is not a directory"));
  AwaitAll();
  EXPECT_EQ(asked_, 0);
  EXPECT_FALSE(holdings_.has_directory());
}

TEST(MayBeLeftTest, ProcessesOfASlurmStepMayNot) {
  setenv("SLURM_STEP_ID", "0", 1);
  const absl::Status may = Joining::MayBeLeft();
  unsetenv("SLURM_STEP_ID");
  EXPECT_TRUE(absl::IsFailedPrecondition(may)) << may;
}

}  // namespace
}  // namespace dtrain::session
