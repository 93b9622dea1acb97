// SPDX-License-Identifier: Apache-2.0
// B12: nodes on which an agent cannot be kept or run. The "node" is this machine in a mount
// namespace of its own, reached by a command.
#include <sys/mount.h>

#include "launcher/transport/command_transport.h"
#include "tests/component/transport/harness.h"

namespace dtrain::transport {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class CacheFaultTest : public TransportTest {
 protected:
  CacheFaultTest() { WriteFile(dir_ / "dtrain-agent", EchoAgent() + "#" + Blob(1 << 20), 0700); }

  void Connect(const std::string& command) {
    agent_ = std::make_unique<AgentBinary>(loop_, dir_ / "dtrain-agent");
    transport_ = std::move(*CommandTransport::Make(loop_, command, *agent_));
    probe_.connection = transport_->Connect({"NODE=1", "", 0}, probe_.callbacks());
    ASSERT_TRUE(Await([&] { return probe_.done(); }));
  }
  // On a tmpfs of its own with these options.
  void ConnectOnMount(const std::string& options) {
    if (system("unshare -m true 2>/dev/null") != 0) GTEST_SKIP() << "needs root, to mount";
    std::string mount = dir_ / "mount";
    mkdir(mount.c_str(), 0700);
    Connect("unshare -m sh -c 'mount -t tmpfs -o " + options + " tmpfs " + mount +
            " && XDG_CACHE_HOME=" + mount + " exec \"$1\"'");
  }

  std::unique_ptr<AgentBinary> agent_;
  std::unique_ptr<CommandTransport> transport_;
  Probe probe_;
};

TEST_F(CacheFaultTest, NoHome) {
  Connect("env -u HOME -u XDG_CACHE_HOME");
  EXPECT_THAT(probe_.error(), HasSubstr("neither HOME nor XDG_CACHE_HOME is set"));
}

TEST_F(CacheFaultTest, AHomeThatIsNoDirectory) {
  Connect("env -u XDG_CACHE_HOME HOME=/dev/null");
  EXPECT_THAT(probe_.error(), AllOf(HasSubstr("make directory /dev/null/.cache/dtrain"),
                                    HasSubstr("Not a directory")));
}

TEST_F(CacheFaultTest, AReadOnlyFileSystem) {
  ConnectOnMount("ro");
  if (IsSkipped()) return;
  EXPECT_THAT(probe_.error(),
              AllOf(HasSubstr("Read-only file system"), HasSubstr("set XDG_CACHE_HOME")));
}

TEST_F(CacheFaultTest, AMountWithoutExecPermissionIsFoundBeforeTheAgentIsSent) {
  ConnectOnMount("noexec");
  if (IsSkipped()) return;
  EXPECT_THAT(probe_.error(), HasSubstr("mounted without exec permission"));
  EXPECT_THAT(probe_.phases, testing::ElementsAre(Phase::kConnecting, Phase::kStartingAgent));
}

TEST_F(CacheFaultTest, NoSpace) {
  ConnectOnMount("size=64k");
  if (IsSkipped()) return;
  EXPECT_THAT(probe_.error(),
              AllOf(HasSubstr("No space left on device"), HasSubstr("free some space")));
}

TEST_F(CacheFaultTest, AToolIsMissing) {
  mkdir((dir_ / "bin").c_str(), 0700);
  for (const char* tool : {"mkdir", "chmod", "tr", "head", "wc", "mv", "rm", "uname"}) {
    std::filesystem::create_symlink(std::string("/usr/bin/") + tool, dir_ / "bin/" + tool);
  }
  Connect("env XDG_CACHE_HOME=" + (dir_ / "cache") + " PATH=" + (dir_ / "bin"));
  EXPECT_THAT(probe_.error(), HasSubstr("no find in PATH"));
}

TEST_F(CacheFaultTest, AnAgentThatChangedWhileItWasSent) {
  agent_ = std::make_unique<AgentBinary>(loop_, dir_ / "dtrain-agent");
  agent_->StartLoading();
  ASSERT_TRUE(agent_->Wait().ok());
  std::filesystem::resize_file(dir_ / "dtrain-agent", 1000);
  transport_ =
      std::move(*CommandTransport::Make(loop_, "env XDG_CACHE_HOME=" + (dir_ / "cache"), *agent_));
  probe_.connection = transport_->Connect({"NODE=1", "", 0}, probe_.callbacks());
  ASSERT_TRUE(Await([&] { return probe_.done(); }));
  EXPECT_THAT(probe_.error(), HasSubstr("bytes of the agent"));
}

TEST_F(CacheFaultTest, AHalfSentAgentIsRemovedWhenTheLauncherGoesAway) {
  WriteFile(dir_ / "dtrain-agent", EchoAgent() + "#" + Blob(64 << 20), 0700);
  agent_ = std::make_unique<AgentBinary>(loop_, dir_ / "dtrain-agent");
  transport_ =
      std::move(*CommandTransport::Make(loop_, "env XDG_CACHE_HOME=" + (dir_ / "cache"), *agent_));
  probe_.connection = transport_->Connect({"NODE=1", "", 0}, probe_.callbacks());
  std::string cache = dir_ / "cache/dtrain/agent-" + agent_->Wait()->front().sha256;
  auto files = [&] {
    std::error_code none;
    std::filesystem::directory_iterator it(cache, none), end;
    return none ? 0 : std::distance(it, end);
  };
  ASSERT_TRUE(Await([&] { return probe_.phases.size() == 3 && files() > 0; }));
  ASSERT_FALSE(probe_.done());
  probe_.connection.reset();
  EXPECT_TRUE(Await([&] { return files() == 0; }));
}

TEST_F(CacheFaultTest, ADamagedAgentInTheCacheIsReplaced) {
  std::string command = "env XDG_CACHE_HOME=" + (dir_ / "cache");
  Connect(command);
  ASSERT_TRUE(probe_.stream) << probe_.error();
  std::string agent =
      absl::StrCat(dir_ / "cache/dtrain/agent-", agent_->Wait()->front().sha256, "/dtrain-agent");
  probe_ = Probe();
  transport_.reset();
  std::filesystem::resize_file(agent, 0);
  Connect(command);
  ASSERT_TRUE(probe_.stream) << probe_.error();
  EXPECT_THAT(probe_.phases, testing::Contains(Phase::kPushingAgent));
}

TEST_F(CacheFaultTest, AgentsNobodyUsedForLongAreRemoved) {
  for (const char* name : {"agent-old", "agent-new"}) {
    std::filesystem::create_directories(dir_ / "cache/dtrain/" + name);
    WriteFile(dir_ / "cache/dtrain/" + name + "/used", "");
  }
  using Clock = std::filesystem::file_time_type::clock;
  std::filesystem::last_write_time(dir_ / "cache/dtrain/agent-old/used",
                                   Clock::now() - std::chrono::hours(24 * 40));
  Connect("env XDG_CACHE_HOME=" + (dir_ / "cache"));
  ASSERT_TRUE(probe_.stream) << probe_.error();
  EXPECT_FALSE(std::filesystem::exists(dir_ / "cache/dtrain/agent-old"));
  EXPECT_TRUE(std::filesystem::exists(dir_ / "cache/dtrain/agent-new"));
}

}  // namespace
}  // namespace dtrain::transport
