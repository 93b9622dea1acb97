// SPDX-License-Identifier: Apache-2.0
// What a launcher is told of the node, and how a shepherd is asked to keep its job for the next
// agent. The test plays the shepherd.
#include "agent/session/joining.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/session/job_directory.h"
#include "common/base/clock.h"
#include "common/loop/frame_channel.h"
#include "common/os/fd.h"
#include "tests/component/inventory/tree.h"
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

// Workers inherit its limits and are below its cgroup, whatever this process has itself.
class ShepherdsLimitsTest : public ::testing::Test {
 protected:
  ShepherdsLimitsTest() {
    readers_.inventory = [](absl::AnyInvocable<void(v1::Inventory)> done) {
      v1::Inventory inventory;
      inventory.set_cpu_quota(1);  // of the agent's own unit
      done(std::move(inventory));
    };
    readers_.roots = tree_.roots();
    tree_.Write("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
    tree_.Write("proc/self/limits", "Max locked memory         unlimited    unlimited    bytes\n");
    tree_.Write("proc/4711/limits", "Max locked memory         1048576      1048576      bytes\n");
    tree_.Write("proc/4711/status", "CapEff:\t0000000000000000\n");
    tree_.Write("proc/4711/cgroup", "0::/spawner/u7\n");
    tree_.Write("sys/fs/cgroup/spawner/cpu.max", "300000 100000\n");
  }
  v1::Inventory Read(bool by_spawner) {
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok());
    auto processes = std::make_unique<NoProcesses>(std::move(pair->first));
    processes->shepherd = 4711;
    processes->prepared = by_spawner;
    ShepherdChannel channel(loop_, std::move(processes));
    v1::Inventory told;
    Joining joining(agent_, hello_, holdings_, channel,
                    {[&](const v1::SessionEvent& event) { told = event.inventory(); },
                     [](const std::vector<v1::Gpu>&) {}});
    joining.Do(SendInventory{});
    return told;
  }
  static bool IsWarned(const v1::Inventory& inventory) {
    return std::any_of(inventory.warnings().begin(), inventory.warnings().end(),
                       [](const std::string& each) {
                         return each.find("only 1 MiB of memory may be locked") != each.npos;
                       });
  }

  loop::Loop loop_;
  const inventory::Tree tree_;
  Readers readers_;
  Reservations reservations_;
  v1::Hello hello_;
  const spawn::Owner owner_{geteuid(), "alice"};
  const Surroundings agent_{loop_, readers_, reservations_, {}, ""};
  Holdings holdings_{agent_, owner_, hello_};
};

TEST_F(ShepherdsLimitsTest, LockedMemoryIsThatOfTheShepherd) {
  for (const bool by_spawner : {false, true}) EXPECT_TRUE(IsWarned(Read(by_spawner)));
  tree_.Write("proc/4711/limits", "Max locked memory         unlimited    unlimited    bytes\n");
  EXPECT_FALSE(IsWarned(Read(false)));
}

TEST_F(ShepherdsLimitsTest, TheQuotaOfTheAgentsUnitIsNotThatOfTheSpawners) {
  EXPECT_EQ(Read(/*by_spawner=*/false).cpu_quota(), 1u);
  EXPECT_EQ(Read(/*by_spawner=*/true).cpu_quota(), 3u);
}

TEST(MayBeLeftTest, ProcessesOfASlurmStepMayNot) {
  setenv("SLURM_STEP_ID", "0", 1);
  const absl::Status may = Joining::MayBeLeft();
  unsetenv("SLURM_STEP_ID");
  EXPECT_TRUE(absl::IsFailedPrecondition(may)) << may;
}

}  // namespace
}  // namespace dtrain::session
