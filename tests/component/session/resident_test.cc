// SPDX-License-Identifier: Apache-2.0
// Which agent a bridge takes for the resident one, where another user's is planted. Listeners of
// the test play the agents.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/os/environment.h"
#include "common/os/fd.h"
#include "common/os/spawn.h"
#include "tests/support/paths.h"

namespace dtrain::session {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

constexpr uid_t kMallory = 65534;

class ResidentTest : public ::testing::Test {
 protected:
  ResidentTest() {
    char name[] = "/tmp/dtXXXXXX";
    top_ = mkdtemp(name);
    fs::permissions(top_, fs::perms(0755));
    state_ = top_ + "/dtrain-agent";
  }
  ~ResidentTest() override { fs::remove_all(top_); }

  static os::Child Start(std::vector<std::string> words, const std::string& variable,
                         int stdin_fd = -1) {
    os::SpawnSpec spec;
    spec.argv = std::move(words);
    spec.argv.insert(spec.argv.begin(), ProgramPath("dtrain-agent"));
    for (const std::string& each : os::OwnEnvironment()) {
      if (!absl::StartsWith(each, "XDG_") && !absl::StartsWith(each, "DTRAIN_")) {
        spec.env.push_back(each);
      }
    }
    spec.env.push_back(variable);
    spec.stdin_fd = stdin_fd;
    spec.stdout_fd = spec.stderr_fd = STDERR_FILENO;
    auto child = os::Spawn(spec);
    EXPECT_TRUE(child.ok()) << child.status();
    return *std::move(child);
  }
  static void End(const os::Child& child) {
    (void)kill(child.pid, SIGKILL);
    (void)waitpid(child.pid, nullptr, 0);
  }

  // What an agent of this build writes into `build`: from one that runs.
  std::string BuildId() const {
    const std::string own = top_ + "/own";
    const os::Child agent = Start({"serve", "--state-dir", own}, "X=");
    std::string id;
    const TimePoint end = Clock::now() + seconds(20);
    for (; id.empty() && Clock::now() < end; poll(nullptr, 0, 10)) {
      auto read = os::ReadSmallFile(own + "/build");
      if (read.ok()) id = *std::move(read);
    }
    End(agent);
    fs::remove_all(own);
    EXPECT_NE(id, "");
    return id;
  }
  // In state_: `build`, and a socket at which the test listens. All of it belongs to `owner`.
  void Plant(uid_t owner) {
    fs::create_directories(state_);
    std::ofstream(state_ + "/build") << BuildId();
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::strncpy(name.sun_path, (state_ + "/agent.sock").c_str(), sizeof(name.sun_path) - 1);
    listener_.Reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
    ASSERT_EQ(listen(listener_.get(), 8), 0);
    for (const std::string& path : {state_, state_ + "/build", state_ + "/agent.sock"}) {
      ASSERT_EQ(chown(path.c_str(), owner, owner), 0);
    }
  }
  // Whether a bridge is connected there by the time it is ready for its launcher. It may have
  // connected only to see whether anybody answers.
  bool IsTaken(const std::string& variable, const std::vector<std::string>& flags = {}) const {
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok());
    std::vector<std::string> words = {"bridge", "--socket"};
    words.insert(words.end(), flags.begin(), flags.end());
    const os::Child bridge = Start(words, variable, pair->second.get());
    pair->second.Reset();
    pollfd ready{pair->first.get(), POLLIN, 0};
    EXPECT_EQ(poll(&ready, 1, 40'000), 1);
    char line[64] = "";
    (void)!read(pair->first.get(), line, sizeof(line) - 1);
    EXPECT_THAT(line, ::testing::HasSubstr("ready"));
    bool is_taken = false;
    for (;;) {
      const os::UniqueFd connection(accept(listener_.get(), nullptr, nullptr));
      if (!connection) break;
      char byte;
      is_taken = recv(connection.get(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
    }
    End(bridge);
    return is_taken;
  }

  std::string top_, state_;
  os::UniqueFd listener_;
};

TEST_F(ResidentTest, ItsUsersOwnIsTaken) {
  Plant(geteuid());
  EXPECT_TRUE(IsTaken("XDG_RUNTIME_DIR=" + top_, {"--ask"}));
  EXPECT_TRUE(IsTaken("XDG_RUNTIME_DIR=" + top_));
  EXPECT_TRUE(IsTaken("DTRAIN_AGENT_STATE=" + state_));
  EXPECT_FALSE(IsTaken("DTRAIN_AGENT_STATE=none"));
}

// The packages' unit has such a umask, and users look for its agent by this file.
TEST_F(ResidentTest, UsersCanReadWhichBuildServesThemAll) {
  if (geteuid() != 0) GTEST_SKIP() << "only root's agent serves all users";
  const std::string own = top_ + "/own";
  const mode_t before = umask(077);
  const os::Child agent = Start({"serve", "--state-dir", own}, "X=");
  umask(before);
  struct stat info {};
  const TimePoint end = Clock::now() + seconds(20);
  while (stat((own + "/build").c_str(), &info) != 0 && Clock::now() < end) poll(nullptr, 0, 10);
  End(agent);
  EXPECT_EQ(info.st_mode & 07777, 0644u);
}

// As after su, or with XDG_RUNTIME_DIR=/tmp.
TEST_F(ResidentTest, AnotherUsersIsNotTakenWhereverXdgRuntimeDirPoints) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  Plant(kMallory);
  EXPECT_FALSE(IsTaken("XDG_RUNTIME_DIR=" + top_, {"--ask"}));
  EXPECT_FALSE(IsTaken("XDG_RUNTIME_DIR=" + top_));
  // Nor where it is ours by now, and she could have changed what is above it.
  ASSERT_EQ(chown(state_.c_str(), 0, 0), 0);
  ASSERT_EQ(chown((state_ + "/build").c_str(), 0, 0), 0);
  ASSERT_EQ(chown(top_.c_str(), kMallory, kMallory), 0);
  EXPECT_FALSE(IsTaken("XDG_RUNTIME_DIR=" + top_, {"--ask"}));
}

// The account dtrain of an agent that its spawner does not allow to run root's jobs.
TEST_F(ResidentTest, AFileOfRootsDoesNotMakeAnotherUsersAgentRoots) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  Plant(kMallory);
  const std::string variable = "DTRAIN_AGENT_STATE=" + state_;
  EXPECT_FALSE(IsTaken(variable));
  EXPECT_TRUE(IsTaken(variable, {"--ask"}));
  // A file of root's, moved there.
  ASSERT_EQ(chown((state_ + "/build").c_str(), 0, 0), 0);
  EXPECT_FALSE(IsTaken(variable));
  // A link to one.
  fs::rename(state_ + "/build", top_ + "/build");
  fs::create_symlink(top_ + "/build", state_ + "/build");
  EXPECT_FALSE(IsTaken(variable));
  // Or what would hold up its reader.
  fs::remove(state_ + "/build");
  ASSERT_EQ(mkfifo((state_ + "/build").c_str(), 0644), 0);
  EXPECT_FALSE(IsTaken(variable));
}

// It is not the name of a folder that somebody has made.
TEST_F(ResidentTest, NoneIsNotAFolder) {
  state_ = top_ + "/none";
  Plant(geteuid());
  const std::string before = fs::current_path();
  fs::current_path(top_);
  EXPECT_FALSE(IsTaken("DTRAIN_AGENT_STATE=none"));
  fs::current_path(before);
}

}  // namespace
}  // namespace dtrain::session
