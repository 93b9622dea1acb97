// SPDX-License-Identifier: Apache-2.0
#include <csignal>

#include "launcher/transport/command_transport.h"
#include "launcher/transport/local_transport.h"
#include "tests/component/transport/harness.h"
#include "tests/support/paths.h"

namespace dtrain::transport {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class LocalTransportTest : public TransportTest {
 protected:
  void Connect(const std::string& agent) {
    WriteFile(dir_ / "agent", agent, 0700);
    transport_ = std::make_unique<LocalTransport>(loop_, dir_ / "agent");
    probe_.connection = transport_->Connect({"", "", 0}, probe_.callbacks());
    ASSERT_FALSE(probe_.done());
    ASSERT_TRUE(Await([&] { return probe_.done(); }));
  }
  std::unique_ptr<LocalTransport> transport_;
  Probe probe_;
};

TEST_F(LocalTransportTest, GivesTheSocketOfAChildAgent) {
  Connect(EchoAgent("echo noise; echo noise >&2"));
  ASSERT_TRUE(probe_.stream) << probe_.error();
  EXPECT_THAT(probe_.phases, ElementsAre(Phase::kStartingAgent));
  EXPECT_TRUE(Echoes(probe_.stream.get(), Blob(1 << 20)));
}

TEST_F(LocalTransportTest, TheAgentEndsWithItsConnection) {
  Connect(EchoAgent("echo $$ >$(dirname $0)/pid"));
  ASSERT_TRUE(probe_.stream) << probe_.error();
  pid_t pid = std::stoi(ReadAll(dir_ / "pid"));
  EXPECT_EQ(getsid(pid), pid);  // Ctrl-C at our terminal does not reach it
  probe_.connection.reset();
  EXPECT_TRUE(Await([&] { return !ProcessExists(pid); }));
}

TEST_F(LocalTransportTest, BytesBehindTheHandshakeLineAreLeftInTheSocket) {
  Connect("#!/bin/sh\nprintf 'DTRAIN-AGENT/1 ready\\nfirst' >&0\nexec cat >&0\n");
  ASSERT_TRUE(probe_.stream) << probe_.error();
  char buffer[16] = {};
  pollfd p{probe_.stream.get(), POLLIN, 0};
  ASSERT_EQ(poll(&p, 1, 10000), 1);
  EXPECT_EQ(recv(probe_.stream.get(), buffer, 5, MSG_WAITALL), 5);
  EXPECT_STREQ(buffer, "first");
}

TEST_F(LocalTransportTest, AMissingAgentIsNamed) {
  transport_ = std::make_unique<LocalTransport>(loop_, dir_ / "no-agent");
  probe_.connection = transport_->Connect({"", "", 0}, probe_.callbacks());
  ASSERT_TRUE(Await([&] { return probe_.done(); }));
  EXPECT_THAT(probe_.error(), HasSubstr("no-agent: No such file"));
}

TEST_F(LocalTransportTest, AnAgentThatEndsSaysHow) {
  Connect("#!/bin/sh\necho 'no memory' >&2\nexit 3\n");
  EXPECT_THAT(probe_.error(), HasSubstr("exited with status 3 before an agent answered"));
  EXPECT_THAT(probe_.error(), HasSubstr("no memory"));
}

TEST_F(LocalTransportTest, CloseReasonNamesTheSignal) {
  Connect(EchoAgent("echo $$ >$(dirname $0)/pid; echo last words >&2"));
  ASSERT_TRUE(probe_.stream) << probe_.error();
  EXPECT_TRUE(probe_.connection->CloseReason().ok());
  kill(std::stoi(ReadAll(dir_ / "pid")), SIGKILL);
  EXPECT_TRUE(Ends(probe_.stream.get()));
  ASSERT_TRUE(Await([&] { return !probe_.connection->CloseReason().ok(); }));
  EXPECT_THAT(probe_.connection->CloseReason().message(), HasSubstr("killed by SIGKILL"));
  EXPECT_THAT(probe_.connection->CloseReason().message(), HasSubstr("last words"));
}

// The host is a word of a command that runs /bin/sh here: what ssh, docker and the like do there.
class CommandTransportTest : public TransportTest {
 protected:
  CommandTransportTest() {
    setenv("XDG_CACHE_HOME", (dir_ / "cache").c_str(), 1);
    WriteFile(dir_ / "dtrain-agent", EchoAgent(), 0700);
  }
  ~CommandTransportTest() override { unsetenv("XDG_CACHE_HOME"); }

  void Connect(const std::string& command) {
    if (!agent_) agent_ = std::make_unique<AgentBinary>(loop_, dir_ / "dtrain-agent");
    auto transport = CommandTransport::Make(loop_, command, *agent_);
    ASSERT_TRUE(transport.ok()) << transport.status();
    probe_ = Probe();
    transport_ = std::move(*transport);
    probe_.connection = transport_->Connect({"node1", "", 0}, probe_.callbacks());
    ASSERT_TRUE(Await([&] { return probe_.done(); }));
  }
  // A command that looks like `ssh HOST WORDS`: the words go to a login shell.
  // A bash whose stdin is a socket takes itself for sshd's when SHLVL says that no other shell is
  // around it, and reads ~/.bashrc instead of BASH_ENV: not here.
  std::string LikeSsh(const std::string& shell) {
    WriteFile(dir_ / "like-ssh",
              absl::StrCat("#!/bin/sh\nshift\nHOME=", dir_.path(),
                           " SHLVL=9\nexport HOME SHLVL\nexec ", shell, " -c \"$*\"\n"),
              0700);
    return dir_ / "like-ssh";
  }

  std::unique_ptr<AgentBinary> agent_;
  std::unique_ptr<CommandTransport> transport_;
  Probe probe_;
};

TEST_F(CommandTransportTest, PushesTheAgentOnceAndThenFindsIt) {
  Connect("env HOST={host}");
  ASSERT_TRUE(probe_.stream) << probe_.error();
  EXPECT_THAT(probe_.phases,
              ElementsAre(Phase::kConnecting, Phase::kStartingAgent, Phase::kPushingAgent));
  EXPECT_TRUE(Echoes(probe_.stream.get(), Blob(1 << 20)));
  Connect("env HOST={host}");
  ASSERT_TRUE(probe_.stream) << probe_.error();
  EXPECT_THAT(probe_.phases, ElementsAre(Phase::kConnecting, Phase::kStartingAgent));
  EXPECT_TRUE(Echoes(probe_.stream.get(), "hello"));

  size_t files = 0;
  for (auto& entry : std::filesystem::recursive_directory_iterator(dir_ / "cache")) {
    if (entry.is_regular_file()) ++files;
    if (entry.is_directory()) {
      EXPECT_EQ(entry.status().permissions(), std::filesystem::perms::owner_all) << entry.path();
    }
  }
  EXPECT_EQ(files, 3u);  // the agent, the time it was used, and the name of the home
}

// B5
TEST_F(CommandTransportTest, WorksBehindEveryLoginShell) {
  const std::string without_environment = absl::StrCat("env -i HOME=", dir_.path(), " bash -l");
  for (const std::string& shell : {std::string("sh"), std::string("bash"), std::string("tcsh"),
                                   std::string("fish"), without_environment}) {
    Connect(LikeSsh(shell));
    EXPECT_TRUE(probe_.stream) << shell << ": " << probe_.error();
    EXPECT_TRUE(Echoes(probe_.stream.get(), "hello")) << shell;
  }
}

// B5
TEST_F(CommandTransportTest, SkipsWhatAStartupFileSays) {
  WriteFile(dir_ / "rc", "read -r answer; echo \"Welcome, press return\"; printf 'no newline'");
  Connect(absl::StrCat(LikeSsh("env BASH_ENV=" + (dir_ / "rc") + " bash")));
  EXPECT_TRUE(probe_.stream) << probe_.error();
  WriteFile(dir_ / "rc", "head -c 80000 /dev/zero | tr '\\0' x");
  Connect(LikeSsh("env BASH_ENV=" + (dir_ / "rc") + " bash"));
  EXPECT_THAT(probe_.error(), HasSubstr("more than 64 KiB"));
  WriteFile(dir_ / "rc", "echo 'This account is closed.'; exit 0");
  Connect(LikeSsh("env BASH_ENV=" + (dir_ / "rc") + " bash"));
  EXPECT_THAT(probe_.error(), HasSubstr("exited with status 0 before an agent answered"));
  EXPECT_THAT(probe_.error(), HasSubstr("\"This account is closed.\""));
}

// A start-up file that leaves no folder of the system in PATH, or asks for input again and again.
TEST_F(CommandTransportTest, NeedsNothingOfPathAndGivesAwayNoCommand) {
  WriteFile(dir_ / "rc", "PATH=/opt/x; export PATH");
  Connect(LikeSsh("env BASH_ENV=" + (dir_ / "rc") + " bash"));
  EXPECT_TRUE(probe_.stream) << probe_.error();
  WriteFile(dir_ / "rc", "read -r a; read -r b; read -r c");
  Connect(LikeSsh("env BASH_ENV=" + (dir_ / "rc") + " bash"));
  EXPECT_TRUE(probe_.stream) << probe_.error();
}

// B8
TEST_F(CommandTransportTest, Status255IsToldApartByTheHandshake) {
  Connect("sh -c 'echo ssh: no route >&2; exit 255'");
  EXPECT_THAT(probe_.error(), HasSubstr("exited with status 255 before an agent answered"));
  EXPECT_THAT(probe_.error(), HasSubstr("ssh: no route"));

  WriteFile(dir_ / "agent255", "#!/bin/sh\necho 'DTRAIN-AGENT/1 ready'\nread -r x\nexit 255\n");
  agent_ = std::make_unique<AgentBinary>(loop_, dir_ / "agent255");
  Connect("env HOST={host}");
  ASSERT_TRUE(probe_.stream) << probe_.error();
  ASSERT_EQ(send(probe_.stream.get(), "\n", 1, 0), 1);
  EXPECT_TRUE(Ends(probe_.stream.get()));
  ASSERT_TRUE(Await([&] { return !probe_.connection->CloseReason().ok(); }));
  EXPECT_THAT(probe_.connection->CloseReason().message(), HasSubstr("exited with status 255"));
  EXPECT_THAT(probe_.connection->CloseReason().message(), Not(HasSubstr("before an agent")));
}

TEST_F(CommandTransportTest, ACommandThatCannotBeRunIsNamed) {
  Connect("no-such-command-here {host}");
  EXPECT_THAT(probe_.error(), HasSubstr("no-such-command-here"));
  EXPECT_THAT(probe_.error(), HasSubstr("No such file"));
}

TEST_F(CommandTransportTest, AMissingAgentFileIsNamed) {
  agent_ = std::make_unique<AgentBinary>(loop_, dir_ / "gone");
  Connect("env HOST={host}");
  EXPECT_THAT(probe_.error(), HasSubstr("open the agent program"));
}

// B15
TEST_F(CommandTransportTest, EndlessStderrIsReadAndForgotten) {
  Connect("sh -c 'yes chatter >&2 & exec \"$1\"'");
  // {host} was appended as $0, /bin/sh is $1.
  ASSERT_TRUE(probe_.stream) << probe_.error();
  EXPECT_TRUE(Echoes(probe_.stream.get(), "hello"));
}

TEST_F(CommandTransportTest, NothingIsLeftOfACommandThatDoesNotEnd) {
  std::string pids = dir_ / "pids";
  Connect("sh -c 'trap \"\" TERM; sleep 300 & echo $! $$ >" + pids +
          "; echo DTRAIN-AGENT/2 x; wait'");
  EXPECT_THAT(probe_.error(), HasSubstr("speaks version 2"));
  std::istringstream in(ReadAll(pids));
  pid_t background = 0, shell = 0;
  in >> background >> shell;
  ASSERT_GT(shell, 0);
  probe_.connection.reset();
  transport_.reset();  // ends what is left
  EXPECT_FALSE(ProcessExists(shell));
  EXPECT_TRUE(Await([&] { return !ProcessRuns(background); }));  // killed with its group
}

TEST_F(CommandTransportTest, ACommandThatEndsWithItsInputIsNotSignalled) {
  std::string how = dir_ / "how";
  Connect("sh -c 'trap \"echo signal >" + how +
          "; exit\" TERM; echo DTRAIN-AGENT/2 x; cat >/dev/null; echo end of input >" + how + "'");
  EXPECT_THAT(probe_.error(), HasSubstr("speaks version 2"));
  probe_.connection.reset();
  transport_.reset();
  EXPECT_EQ(ReadAll(how), "end of input\n");
}

TEST_F(CommandTransportTest, AConnectionDestroyedEarlyTellsNothing) {
  agent_ = std::make_unique<AgentBinary>(loop_, dir_ / "dtrain-agent");
  transport_ = std::move(*CommandTransport::Make(loop_, "sleep 300;", *agent_));
  probe_.connection = transport_->Connect({"node1", "", 0}, probe_.callbacks());
  probe_.connection.reset();
  auto env = std::move(*CommandTransport::Make(loop_, "env", *agent_));
  Probe second;
  second.connection = env->Connect({"X=y", "", 0}, second.callbacks());
  EXPECT_TRUE(Await([&] { return second.done(); }));
  EXPECT_FALSE(probe_.done());
  EXPECT_TRUE(probe_.phases.empty());
}

TEST_F(CommandTransportTest, TheRealAgentIsPushedAndAnswers) {
  agent_ = std::make_unique<AgentBinary>(loop_, ProgramPath("dtrain-agent"));
  Connect("env HOST={host}");
  ASSERT_TRUE(probe_.stream) << probe_.error();
  probe_.connection.reset();
  LocalTransport local(loop_, agent_->path());
  probe_ = Probe();
  probe_.connection = local.Connect({"", "", 0}, probe_.callbacks());
  ASSERT_TRUE(Await([&] { return probe_.done(); }));
  EXPECT_TRUE(probe_.stream) << probe_.error();
  probe_.connection.reset();
}

// Hashing it takes tens of milliseconds, which a launch that pushes nothing does not have to spend.
TEST_F(CommandTransportTest, TheAgentIsReadWhenATransportNeedsIt) {
  agent_ = std::make_unique<AgentBinary>(loop_, dir_ / "later");
  bool posted = false;
  loop_.Post([&] { posted = true; });
  ASSERT_TRUE(Await([&] { return posted; }));
  WriteFile(dir_ / "later", EchoAgent(), 0700);
  Connect("env HOST={host}");
  EXPECT_TRUE(probe_.stream) << probe_.error();
}

// B13
TEST_F(CommandTransportTest, TwoPushesAtOnceBothWork) {
  WriteFile(dir_ / "dtrain-agent", EchoAgent() + "#" + Blob(3 << 20), 0700);
  agent_ = std::make_unique<AgentBinary>(loop_, dir_ / "dtrain-agent");
  transport_ = std::move(*CommandTransport::Make(loop_, "env", *agent_));
  Probe probes[4];
  for (Probe& p : probes) p.connection = transport_->Connect({"X=y", "", 0}, p.callbacks());
  EXPECT_TRUE(Await([&] {
    return probes[0].done() && probes[1].done() && probes[2].done() && probes[3].done();
  }));
  for (Probe& p : probes) {
    ASSERT_TRUE(p.stream) << p.error();
    EXPECT_TRUE(Echoes(p.stream.get(), "hello"));
  }
}

}  // namespace
}  // namespace dtrain::transport
