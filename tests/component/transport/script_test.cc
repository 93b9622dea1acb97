// SPDX-License-Identifier: Apache-2.0
// The bootstrap script itself, under the node's shell.
#include "launcher/transport/bootstrap.h"
#include "launcher/transport/child.h"
#include "tests/component/transport/harness.h"

namespace dtrain::transport {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

constexpr char kTools[] = "/usr/bin:/bin";

// A node's shell and what it was told to do.
class NodeShell {
 public:
  NodeShell(std::vector<std::string> shell, const std::string& script, const std::string& path,
            const std::string& cache) {
    std::vector<std::string> argv = {"/usr/bin/env", "PATH=" + path, "XDG_CACHE_HOME=" + cache};
    argv.insert(argv.end(), shell.begin(), shell.end());
    auto child = StartChild(argv, /*stdout_apart=*/false);
    EXPECT_TRUE(child.ok()) << child.status();
    child_ = *std::move(child);
    Send(script);
  }
  int stream() const { return child_.stream.get(); }
  const std::string& got() const { return got_; }

  void Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      pollfd p{stream(), POLLOUT, 0};
      ASSERT_EQ(poll(&p, 1, 10000), 1);
      ssize_t n = send(stream(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      ASSERT_GT(n, 0);
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  // The next line with `what`; empty when it does not come.
  std::string ReadTo(const std::string& what) {
    const TimePoint deadline = Clock::now() + kDeadline;
    while (Clock::now() < deadline) {
      const size_t at = got_.find(what, taken_), end = got_.find('\n', at);
      if (at != std::string::npos && end != std::string::npos) {
        taken_ = end;
        return got_.substr(at, end - at);
      }
      pollfd p{stream(), POLLIN, 0};
      poll(&p, 1, 1000);
      char buffer[4096];
      ssize_t n = recv(stream(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (n == 0) return "";
      if (n > 0) got_.append(buffer, static_cast<size_t>(n));
    }
    return "";
  }

 private:
  Child child_;
  std::string got_;
  size_t taken_ = 0;
};

class ScriptTest : public TransportTest {
 protected:
  ScriptTest() {
    std::filesystem::create_directories(dir_ / "tools");
    WriteFile(dir_ / "dtrain-agent", EchoAgent() + "#" + std::string(100000, 'x'), 0700);
    agent_ = std::make_unique<AgentBinary>(loop_, dir_ / "dtrain-agent");
    agent_->StartLoading();
    EXPECT_TRUE(agent_->Wait().ok()) << agent_->Wait().status();
  }
  const AgentImage& image() const { return agent_->Wait()->front(); }
  std::unique_ptr<NodeShell> Start(const std::string& path = kTools,
                                   std::vector<std::string> shell = {"/bin/sh"}) {
    return std::make_unique<NodeShell>(std::move(shell),
                                       BootstrapScript(*agent_->Wait(), /*bridge_flag=*/""), path,
                                       dir_ / "cache");
  }
  // All tools that the script must have, and no more.
  std::string FewTools() {
    for (const char* tool :
         {"mkdir", "chmod", "tr", "head", "wc", "mv", "rm", "uname", "find", "sha256sum", "cat"}) {
      std::filesystem::create_symlink(std::string("/usr/bin/") + tool, dir_ / "tools/" + tool);
    }
    return dir_ / "tools";
  }
  std::string Cached() const {
    return absl::StrCat(dir_ / "cache/dtrain/agent-", image().sha256, "/dtrain-agent");
  }
  std::string Home() const { return dir_ / "cache/dtrain/home"; }
  // Those of agents, whole or not.
  size_t FilesInCache() {
    size_t files = 0;
    for (auto& entry : std::filesystem::recursive_directory_iterator(dir_ / "cache")) {
      if (entry.is_regular_file() && entry.path() != Home()) ++files;
    }
    return files;
  }
  std::string All(bool packed) {
    AgentPush push(image(), packed);
    std::string all;
    for (std::string piece; !(piece = push.Next(4096)).empty();) all += piece;
    EXPECT_TRUE(push.complete());
    return all;
  }
  // That of the node's `need` line; empty when it has none.
  std::string NameFor(const std::string& path, std::vector<std::string> shell = {"/bin/sh"}) {
    auto node = Start(path, std::move(shell));
    const std::string need = node->ReadTo("need ");
    EXPECT_THAT(need, HasSubstr("gzip=")) << node->got();
    const size_t at = need.find("home=");
    shutdown(node->stream(), SHUT_WR);
    EXPECT_TRUE(Ends(node->stream()));
    return at == std::string::npos ? "" : need.substr(at + 5);
  }

  std::unique_ptr<AgentBinary> agent_;
};

TEST_F(ScriptTest, TheAgentIsSentPackedWhereThereIsGzip) {
  auto node = Start();
  EXPECT_THAT(node->ReadTo("need "), HasSubstr(" gzip=yes"));
  const std::string all = All(/*packed=*/true);
  EXPECT_THAT(all.substr(0, 5), "gzip ");
  EXPECT_LT(all.size(), 2000u);  // of 100,000
  node->Send(all);
  EXPECT_THAT(node->ReadTo("ready"), HasSubstr("ready")) << node->got();
  EXPECT_TRUE(ReadAll(Cached()) == ReadAll(dir_ / "dtrain-agent"));
}

// Nor is there a program that makes links, so this node gives its home no name.
TEST_F(ScriptTest, AndAsItIsWhereThereIsNone) {
  auto node = Start(FewTools());
  EXPECT_THAT(node->ReadTo("need "), AllOf(HasSubstr(" gzip=no"), Not(HasSubstr("home="))));
  node->Send(All(/*packed=*/false));
  EXPECT_THAT(node->ReadTo("ready"), HasSubstr("ready")) << node->got();
  EXPECT_FALSE(std::filesystem::exists(Home()));
}

TEST_F(ScriptTest, APackedAgentThatIsCutShortLeavesNothing) {
  auto node = Start();
  node->ReadTo("need ");
  const std::string all = All(/*packed=*/true);
  node->Send(all.substr(0, all.size() - 20));
  shutdown(node->stream(), SHUT_WR);
  EXPECT_THAT(node->ReadTo("error "), AllOf(HasSubstr("code=unpack"), HasSubstr("unexpected end")));
  EXPECT_TRUE(Ends(node->stream()));
  EXPECT_EQ(FilesInCache(), 0u);
}

TEST_F(ScriptTest, APackedAgentThatWasAlteredLeavesNothing) {
  auto node = Start();
  node->ReadTo("need ");
  std::string all = All(/*packed=*/true);
  all[all.size() - 6] ^= 1;  // its checksum
  node->Send(all);
  EXPECT_THAT(node->ReadTo("error "), AllOf(HasSubstr("code=unpack"), HasSubstr("crc error")));
  EXPECT_TRUE(Ends(node->stream()));
  EXPECT_EQ(FilesInCache(), 0u);
}

TEST_F(ScriptTest, ALauncherThatSendsNothingLeavesNothing) {
  auto node = Start();
  node->ReadTo("need ");
  shutdown(node->stream(), SHUT_WR);
  EXPECT_THAT(node->ReadTo("error "), HasSubstr("code=short"));
  EXPECT_TRUE(Ends(node->stream()));
  EXPECT_EQ(FilesInCache(), 0u);
}

TEST_F(ScriptTest, ANodeThatCannotMakeOneStillReadsTheName) {
  const std::string few = FewTools();
  EXPECT_EQ(NameFor(few), "");
  const std::string name = NameFor(kTools);
  EXPECT_NE(name, "");
  EXPECT_EQ(NameFor(few), name);
}

constexpr char kNeed[] = "need machine=[a-z0-9_]+ gzip=yes home=[a-f0-9]{24}";

// The kinds of /bin/sh that nodes have.
class HomeTest : public ScriptTest, public testing::WithParamInterface<std::vector<std::string>> {
 protected:
  std::unique_ptr<NodeShell> StartHere() { return Start(kTools, GetParam()); }
  std::string NameHere() { return NameFor(kTools, GetParam()); }
};

TEST_P(HomeTest, AHomeKeepsItsName) {
  auto one = StartHere(), two = StartHere();
  const std::string need = one->ReadTo("need ");
  EXPECT_THAT(need, MatchesRegex(kNeed));
  EXPECT_EQ(two->ReadTo("need "), need);
  EXPECT_EQ(ReadAll(Home()), need.substr(need.size() - 24) + "\n");
  struct stat file = {};
  ASSERT_EQ(stat(Home().c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 07777, 0600u);
  EXPECT_EQ(FilesInCache(), 0u);

  std::filesystem::remove(Home());
  EXPECT_THAT(StartHere()->ReadTo("need "), AllOf(MatchesRegex(kNeed), Not(need)));
}

TEST_P(HomeTest, ANodeThatLooksAgainRunsWhatAnotherWasSent) {
  auto first = StartHere(), second = StartHere();
  EXPECT_NE(first->ReadTo("need "), "");
  EXPECT_NE(second->ReadTo("need "), "");
  first->Send(All(/*packed=*/true));
  EXPECT_NE(first->ReadTo("ready"), "") << first->got();
  second->Send("look\n");
  EXPECT_NE(second->ReadTo("ready"), "") << second->got();
  EXPECT_TRUE(Echoes(second->stream(), "hello"));
  EXPECT_EQ(FilesInCache(), 2u);
}

TEST_P(HomeTest, ANodeThatLooksInVainAsksAgain) {
  auto node = StartHere();
  const std::string need = node->ReadTo("need ");
  node->Send("look\n");
  EXPECT_EQ(node->ReadTo("need "), need);
  EXPECT_EQ(FilesInCache(), 0u);
  node->Send(All(/*packed=*/false));
  EXPECT_NE(node->ReadTo("ready"), "") << node->got();
  EXPECT_EQ(FilesInCache(), 2u);
}

// By accident or not: the agent is sent as to a node that has given no name.
TEST_P(HomeTest, WhatIsNoNameOfOursIsNeitherSentNorTouchedNorWaitedFor) {
  const std::string x24(24, 'a');
  EXPECT_NE(NameHere(), "");  // makes the folders
  for (const std::string& text :
       {std::string(), std::string("\n"), std::string("ab cd"), "a b" + x24, "home=" + x24,
        std::string(24, '\0'), std::string(23, 'a') + "\n", std::string(24, 'X')}) {
    WriteFile(Home(), text);
    EXPECT_EQ(NameHere(), "") << testing::PrintToString(text);
    EXPECT_EQ(ReadAll(Home()), text);
  }
  WriteFile(Home(), std::string(8 << 20, 'b'));  // the beginning does
  EXPECT_EQ(NameHere(), std::string(24, 'b'));

  std::filesystem::remove(Home());
  ASSERT_EQ(mkfifo(Home().c_str(), 0600), 0);
  EXPECT_EQ(NameHere(), "");

  std::filesystem::remove(Home());
  std::filesystem::create_directory(Home());
  EXPECT_EQ(NameHere(), "");
  EXPECT_TRUE(std::filesystem::is_empty(Home()));

  std::filesystem::remove(Home());
  std::filesystem::create_symlink("/dev/zero", Home());
  EXPECT_EQ(NameHere(), "");
  std::filesystem::remove(Home());
  std::filesystem::create_symlink(dir_ / "nowhere", Home());
  EXPECT_EQ(NameHere(), "");
  EXPECT_FALSE(std::filesystem::exists(dir_ / "nowhere"));

  if (geteuid() == 0) {
    std::filesystem::remove(Home());
    WriteFile(Home(), x24 + "\n", 0644);
    EXPECT_EQ(NameHere(), x24);
    ASSERT_EQ(chown(Home().c_str(), 65534, 65534), 0);
    EXPECT_EQ(NameHere(), "");
  }
}

// A cache that has the agent, in a folder that others use, too.
class SharedCacheTest : public HomeTest {
 protected:
  SharedCacheTest() {
    if (GetParam()[0] != "/bin/busybox") return;
    std::filesystem::create_symlink("/bin/busybox", dir_ / "tools/find");
  }
  std::unique_ptr<NodeShell> StartHere() {
    return Start(absl::StrCat(dir_ / "tools", ":", kTools), GetParam());
  }
  void Push() {
    auto node = StartHere();
    EXPECT_NE(node->ReadTo("need "), "") << node->got();
    node->Send(All(/*packed=*/false));
    EXPECT_NE(node->ReadTo("ready"), "") << node->got();
  }
  void ExpectDenied(const std::string& what) {
    auto node = StartHere();
    EXPECT_THAT(node->ReadTo("error "), AllOf(HasSubstr("code=denied"), HasSubstr(what)));
    EXPECT_THAT(node->got(), Not(HasSubstr("ready")));
    EXPECT_TRUE(Ends(node->stream()));
  }
  std::string Base() const { return dir_ / "cache/dtrain"; }
  std::string Dir() const { return std::filesystem::path(Cached()).parent_path(); }
  std::string Used() const { return Dir() + "/used"; }
};

TEST_P(SharedCacheTest, AnotherUsersFolderIsNotUsed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  Push();
  std::filesystem::remove(Used());
  ASSERT_EQ(chown(Base().c_str(), 65534, 65534), 0);
  ExpectDenied("cache/dtrain is a link or does not belong to this user");
  ASSERT_EQ(chown(Base().c_str(), 0, 0), 0);
  ASSERT_EQ(chown(Dir().c_str(), 65534, 65534), 0);
  ExpectDenied(image().sha256 + " is a link or does not belong to this user");
  EXPECT_FALSE(std::filesystem::exists(Used()));
}

TEST_P(SharedCacheTest, ALinkIsNotFollowed) {
  Push();
  std::filesystem::remove(Used());
  const std::string elsewhere = dir_ / "elsewhere";
  for (const std::string& each : {Dir(), Base()}) {
    std::filesystem::rename(each, elsewhere);
    std::filesystem::create_symlink(elsewhere, each);
    ExpectDenied("is a link or does not belong to this user");
    std::filesystem::remove(each);
    std::filesystem::rename(elsewhere, each);
  }
  EXPECT_FALSE(std::filesystem::exists(Used()));
}

// What is there may be theirs: the agent is sent again.
TEST_P(SharedCacheTest, WhatOthersCouldChangeIsClosedAndNotRun) {
  Push();
  for (const std::string& each : {Base(), Dir(), Cached()}) {
    for (const mode_t mode : {0720, 0702}) {
      ASSERT_EQ(chmod(each.c_str(), mode), 0);
      auto node = StartHere();
      EXPECT_NE(node->ReadTo("need "), "") << node->got();
      node->Send(All(/*packed=*/false));
      EXPECT_NE(node->ReadTo("ready"), "") << node->got();
      struct stat now = {};
      ASSERT_EQ(stat(each.c_str(), &now), 0);
      EXPECT_EQ(now.st_mode & 07777, 0700u);
    }
  }
  EXPECT_NE(StartHere()->ReadTo("ready"), "") << "that is the agent";
}

TEST_P(SharedCacheTest, AFifoOrLinkNamedUsedIsLeftAlone) {
  Push();
  std::filesystem::remove(Used());
  ASSERT_EQ(mkfifo(Used().c_str(), 0600), 0);
  EXPECT_NE(StartHere()->ReadTo("ready"), "") << "it would wait for a reader";
  std::filesystem::remove(Used());
  WriteFile(dir_ / "precious", "precious");
  std::filesystem::create_symlink(dir_ / "precious", Used());
  EXPECT_NE(StartHere()->ReadTo("ready"), "");
  EXPECT_EQ(ReadAll(dir_ / "precious"), "precious");
}

const auto kShells = testing::Values(std::vector<std::string>{"/bin/dash"},
                                     std::vector<std::string>{"/bin/bash", "--posix"},
                                     std::vector<std::string>{"/bin/busybox", "sh"});
INSTANTIATE_TEST_SUITE_P(Shells, SharedCacheTest, kShells);
INSTANTIATE_TEST_SUITE_P(Shells, HomeTest, kShells);

}  // namespace
}  // namespace dtrain::transport
