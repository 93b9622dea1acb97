// SPDX-License-Identifier: Apache-2.0
// Nodes that share a home are sent the agent once. All nodes are this machine here, reached by
// libssh or by a command.
#include <pwd.h>

#include <csignal>
#include <functional>

#include "launcher/transport/command_transport.h"
#include "launcher/transport/ssh_transport.h"
#include "tests/component/transport/ssh_server.h"

namespace dtrain::transport {
namespace {

using testing::Contains;
using testing::HasSubstr;

class SharedHomeTest : public TransportTest {
 protected:
  SharedHomeTest() {
    unsetenv("SSH_AUTH_SOCK");
    mkdir((dir_ / "tools").c_str(), 0700);
    WriteFile(dir_ / "dtrain-agent", EchoAgent() + "#" + Blob(3 << 20), 0700);
    // What takes an agent from the stream; the first is held up in the middle of it, if wanted.
    WriteFile(dir_ / "tools/head",
              "#!/bin/sh\n"
              "case $2 in ??????*)\n"
              "  echo push >>" +
                  (dir_ / "pushes") +
                  "\n"
                  "  [ ! -p " +
                  (dir_ / "gate") + " ] || ! mkdir " + (dir_ / "held") +
                  " 2>/dev/null || { /usr/bin/head -c 100000; read -r x <" + (dir_ / "gate") +
                  "; exec /usr/bin/head -c $(($2 - 100000)); }\n"
                  "esac\n"
                  "exec /usr/bin/head \"$@\"\n",
              0700);
    Load(PushOrder::kLongestWait);
  }
  void Load(Duration longest_wait) {
    agent_ = std::make_unique<AgentBinary>(loop_, dir_ / "dtrain-agent", longest_wait);
  }
  // The first node that is sent the agent does not end that before Release.
  void HoldTheFirst() {
    ASSERT_EQ(mkfifo((dir_ / "gate").c_str(), 0600), 0);
    gate_.Reset(open((dir_ / "gate").c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(gate_);
  }
  void Release() { ASSERT_EQ(write(gate_.get(), "\n", 1), 1); }
  void OverCommand(const std::string& cache) {
    transport_ = std::move(*CommandTransport::Make(
        loop_,
        "sh -c 'echo $$ >>" + (dir_ / "shells") + "; PATH=" + (dir_ / "tools") +
            ":$PATH XDG_CACHE_HOME=" + cache + " exec \"$2\"' sh {host}",
        *agent_));
  }
  size_t Lines(const std::string& file) {
    const std::string text = ReadAll(dir_ / file);
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  size_t Pushes() { return Lines("pushes"); }
  void Begin(Probe& probe, const std::string& host = "node1") {
    probe.connection = transport_->Connect({host, "", 0}, probe.callbacks());
  }
  // Until it has asked for the agent.
  bool Asks(Probe& probe) {
    return Await([&] {
             return probe.failed || testing::Value(probe.phases, Contains(Phase::kPushingAgent));
           }) &&
           !probe.failed;
  }
  testing::AssertionResult Answers(Probe& probe) {
    if (!Await([&] { return probe.done(); })) return testing::AssertionFailure() << "no answer";
    if (!probe.stream) return testing::AssertionFailure() << probe.error();
    return Echoes(probe.stream.get(), "hello");
  }

  os::UniqueFd gate_;
  std::unique_ptr<AgentBinary> agent_;
  std::unique_ptr<SshServer> server_;
  std::unique_ptr<Transport> transport_;
  Probe probes_[4];
};

class EachTransportTest : public SharedHomeTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    const passwd* const entry = getpwuid(geteuid());
    if (GetParam() && (entry == nullptr || !absl::EndsWith(entry->pw_shell, "/bash"))) {
      GTEST_SKIP() << "needs a login shell that reads .bashrc";
    }
  }
  void Serve() {
    if (!GetParam()) return OverCommand(dir_ / "cache");
    server_ = std::make_unique<SshServer>();
    ASSERT_TRUE(server_->listening());
    WriteFile(server_->dir() / ".bashrc",
              "echo $$ >>" + (dir_ / "shells") + "\nexport PATH=" + (dir_ / "tools") + ":$PATH\n");
    SshOptions options;
    options.config_file = server_->config();
    transport_ = std::make_unique<SshTransport>(loop_, options, *agent_);
  }
  // In the middle of its push.
  void ServeTheFirstHeld() {
    Serve();
    HoldTheFirst();
    Begin(probes_[0]);
    ASSERT_TRUE(Await([&] { return std::filesystem::exists(dir_ / "held"); }));
  }
  // And the others wait for it.
  void ServeAllWithTheFirstHeld() {
    ServeTheFirstHeld();
    for (Probe* probe : {&probes_[1], &probes_[2], &probes_[3]}) {
      Begin(*probe);
      ASSERT_TRUE(Asks(*probe)) << probe->error();
    }
  }
};

TEST_P(EachTransportTest, OneNodeIsSentTheAgentAndTheOthersFindIt) {
  ServeAllWithTheFirstHeld();
  EXPECT_EQ(Pushes(), 1u);
  Release();
  for (Probe& probe : probes_) EXPECT_TRUE(Answers(probe));
  EXPECT_EQ(Pushes(), 1u);
}

TEST_P(EachTransportTest, WhenTheFirstIsGivenUpTheOthersAreSentIt) {
  ServeAllWithTheFirstHeld();
  probes_[0].connection.reset();
  for (Probe* probe : {&probes_[1], &probes_[2], &probes_[3]}) EXPECT_TRUE(Answers(*probe));
  EXPECT_GE(Pushes(), 2u);  // one may be so late that it finds what another was sent now
}

TEST_P(EachTransportTest, WhenTheFirstDiesTheOthersAreSentIt) {
  ServeAllWithTheFirstHeld();
  if (HasFatalFailure()) return;  // there is nobody to kill
  if (GetParam()) {
    const std::vector<pid_t> sessions = server_->Sessions();
    ASSERT_FALSE(sessions.empty());
    kill(sessions.front(), SIGKILL);  // the connection breaks
  } else {
    kill(std::stoi(ReadAll(dir_ / "shells")), SIGKILL);
  }
  for (Probe* probe : {&probes_[1], &probes_[2], &probes_[3]}) EXPECT_TRUE(Answers(*probe));
  EXPECT_TRUE(probes_[0].failed);
  EXPECT_GE(Pushes(), 2u);  // one may be so late that it finds what another was sent now
}

TEST_P(EachTransportTest, WhenTheFirstTakesTooLongTheNextIsSentItToo) {
  Load(std::chrono::milliseconds(100));
  ServeTheFirstHeld();
  Begin(probes_[1]);
  EXPECT_TRUE(Answers(probes_[1]));
  EXPECT_FALSE(probes_[0].done());
  EXPECT_EQ(Pushes(), 2u);
  Release();
  EXPECT_TRUE(Answers(probes_[0]));
}

TEST_P(EachTransportTest, ANodeThatDiesWhileItWaitsSaysSoAtOnceAndDisturbsNobody) {
  ServeAllWithTheFirstHeld();
  std::istringstream shells(ReadAll(dir_ / "shells"));
  pid_t first = 0, second = 0;
  shells >> first >> second;
  ASSERT_GT(second, 0);
  kill(second, SIGKILL);
  ASSERT_TRUE(Await([&] { return probes_[1].done(); }));
  EXPECT_THAT(probes_[1].error(), HasSubstr("was killed by SIGKILL before an agent answered, and "
                                            "after the node had asked to be sent one"));
  probes_[2].connection.reset();
  Release();
  EXPECT_TRUE(Answers(probes_[0]));
  EXPECT_TRUE(Answers(probes_[3]));
  EXPECT_EQ(Pushes(), 1u);
}

TEST_P(EachTransportTest, ALauncherThatEndsWaitsForNobody) {
  ServeAllWithTheFirstHeld();
  const TimePoint start = Clock::now();
  for (Probe& probe : probes_) probe.connection.reset();
  transport_.reset();
  agent_.reset();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
}

INSTANTIATE_TEST_SUITE_P(Ways, EachTransportTest, testing::Bool(),
                         [](const auto& way) { return way.param ? "Ssh" : "Command"; });

// As where a disk was copied with the home on it.
TEST_F(SharedHomeTest, HomesThatAreNotSharedButHaveOneNameAreBothSentIt) {
  for (const char* host : {"node1", "node2"}) {
    std::filesystem::create_directories(dir_ / host + "/dtrain");
    WriteFile(dir_ / host + "/dtrain/home", std::string(24, 'c') + "\n");
  }
  OverCommand(dir_.path() + "/$1");
  HoldTheFirst();
  Begin(probes_[0], "node1");
  ASSERT_TRUE(Await([&] { return std::filesystem::exists(dir_ / "held"); }));
  Begin(probes_[1], "node2");
  ASSERT_TRUE(Asks(probes_[1])) << probes_[1].error();
  Release();
  EXPECT_TRUE(Answers(probes_[0]));
  EXPECT_TRUE(Answers(probes_[1]));
  EXPECT_EQ(Pushes(), 2u);
  for (const char* host : {"node1", "node2"}) {
    EXPECT_TRUE(std::filesystem::exists(absl::StrCat(
        dir_ / host, "/dtrain/agent-", agent_->Wait()->front().sha256, "/dtrain-agent")));
  }
}

// Nodes that say what they like.
TEST_F(SharedHomeTest, ANodeThatNeverStopsAskingFails) {
  WriteFile(dir_ / "node",
            "#!/bin/sh\n"
            "need='DTRAIN-AGENT/1 need machine=x86_64 gzip=no home='$(printf %2000s | tr ' ' x)\n"
            "while :; do echo \"$need\"; [ \"$1\" != liar ] || read -r answer; "
            "[ \"$1\" != first ] || exec cat >/dev/null; done\n",
            0700);
  transport_ = std::move(*CommandTransport::Make(loop_, (dir_ / "node") + " {host}", *agent_));
  Begin(probes_[0], "first");
  ASSERT_TRUE(Asks(probes_[0])) << probes_[0].error();
  Begin(probes_[1], "liar");
  ASSERT_TRUE(Asks(probes_[1])) << probes_[1].error();
  probes_[0].connection.reset();
  ASSERT_TRUE(Await([&] { return probes_[1].done(); }));
  EXPECT_THAT(probes_[1].error(), HasSubstr("asked for the agent twice"));
}

// While its exit status and last words may still come, its turn comes first.
TEST_F(SharedHomeTest, ANodeWhoseOutputHasEndedIsSentNothing) {
  WriteFile(dir_ / "node",
            "#!/bin/sh\n"
            "echo 'DTRAIN-AGENT/1 need machine=x86_64 gzip=no home=h'\n"
            "[ $1 = first ] || exec /usr/bin/python3 -c 'import signal, socket; "
            "socket.socket(fileno=0).shutdown(socket.SHUT_WR); signal.pause()'\n"
            "exec cat >/dev/null\n",
            0700);
  Load(std::chrono::milliseconds(500));
  transport_ = std::move(*CommandTransport::Make(loop_, (dir_ / "node") + " {host}", *agent_));
  Begin(probes_[0], "first");
  ASSERT_TRUE(Asks(probes_[0])) << probes_[0].error();
  Begin(probes_[1], "half");
  ASSERT_TRUE(Await([&] { return probes_[1].done(); }));
  EXPECT_THAT(probes_[1].error(), HasSubstr("closed its output before an agent answered"));
  EXPECT_FALSE(probes_[0].done());
}

}  // namespace
}  // namespace dtrain::transport
