// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/ssh_transport.h"
#include "tests/component/transport/ssh_server.h"
#include "tests/support/paths.h"

namespace dtrain::transport {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class SshFaultTest : public TransportTest {
 protected:
  SshFaultTest() {
    unsetenv("SSH_AUTH_SOCK");
    WriteFile(dir_ / "dtrain-agent", EchoAgent(), 0700);
  }
  void Serve(const std::string& sshd_lines = "") {
    probe_ = Probe();
    transport_.reset();
    server_ = std::make_unique<SshServer>(sshd_lines);
    ASSERT_TRUE(server_->listening());
  }
  void Begin(const std::string& host = "node1") {
    if (!agent_) agent_ = std::make_unique<AgentBinary>(loop_, dir_ / "dtrain-agent");
    probe_ = Probe();
    SshOptions options;
    options.config_file = server_->config();
    options.connect_timeout = timeout_;
    transport_ = std::make_unique<SshTransport>(loop_, options, *agent_);
    probe_.connection = transport_->Connect({host, "", 0}, probe_.callbacks());
  }
  void Connect(const std::string& host = "node1") {
    Begin(host);
    ASSERT_TRUE(Await([&] { return probe_.done(); }));
  }

  Duration timeout_ = std::chrono::seconds(10);
  std::unique_ptr<AgentBinary> agent_;
  std::unique_ptr<SshServer> server_;
  std::unique_ptr<SshTransport> transport_;
  Probe probe_;
};

// B1
TEST_F(SshFaultTest, AnUnknownHostKeyIsRefusedWithTheNextStep) {
  Serve();
  WriteFile(server_->dir() / "known_hosts", "");
  Connect();
  ASSERT_TRUE(probe_.failed);
  EXPECT_EQ(probe_.failed->code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(probe_.error(),
              AllOf(HasSubstr("SHA256:"),
                    HasSubstr("is in no known_hosts file (" + (server_->dir() / "known_hosts")),
                    HasSubstr(absl::StrCat("ssh-keyscan -p ", server_->port(), " 127.0.0.1"))));
  EXPECT_EQ(ReadAll(server_->dir() / "known_hosts"), "");
}

// B1
TEST_F(SshFaultTest, AChangedHostKeyIsRefusedWithTheNextStep) {
  Serve();
  server_->Keygen("other");
  server_->Trust("other");
  Connect();
  ASSERT_TRUE(probe_.failed);
  EXPECT_EQ(probe_.failed->code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(probe_.error(),
              AllOf(HasSubstr("has changed"), HasSubstr("ssh-keygen -f "),
                    HasSubstr(absl::StrCat("-R '[127.0.0.1]:", server_->port(), "'"))));
}

// B1: the user's own choice, made in the ssh configuration.
TEST_F(SshFaultTest, AcceptNewAddsAnUnknownKeyAndRefusesAChangedOne) {
  Serve();
  WriteFile(server_->dir() / "known_hosts", "");
  server_->WriteConfig("  StrictHostKeyChecking accept-new");
  Connect();
  EXPECT_TRUE(probe_.stream) << probe_.error();
  EXPECT_THAT(ReadAll(server_->dir() / "known_hosts"), HasSubstr("ssh-ed25519"));
  server_->Keygen("other");
  server_->Trust("other");
  Connect();
  EXPECT_THAT(probe_.error(), HasSubstr("has changed"));
}

// B1
TEST_F(SshFaultTest, TheNameInKnownHostsMayBeAnAlias) {
  Serve();
  WriteFile(server_->dir() / "known_hosts",
            "the-alias " + ReadAll(server_->dir() / "host_key.pub"));
  server_->WriteConfig("  HostKeyAlias the-alias");
  Connect();
  EXPECT_TRUE(probe_.stream) << probe_.error();
}

// B1
TEST_F(SshFaultTest, AnEntryInKnownHostsWithoutAPortIsGoodForEveryPort) {
  Serve();
  WriteFile(server_->dir() / "known_hosts",
            "127.0.0.1 " + ReadAll(server_->dir() / "host_key.pub"));
  Connect();
  EXPECT_TRUE(probe_.stream) << probe_.error();
}

// B2
TEST_F(SshFaultTest, ARefusedKeySaysWhatWasTriedAndWhatTheServerOffers) {
  Serve();
  WriteFile(server_->dir() / "authorized_keys", "");
  Connect();
  ASSERT_TRUE(probe_.failed);
  EXPECT_EQ(probe_.failed->code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(probe_.error(),
              AllOf(HasSubstr("log in as " + UserName() + ": no key was accepted"),
                    HasSubstr("tried " + (server_->dir() / "id")), HasSubstr("offers publickey")));
}

// B2
TEST_F(SshFaultTest, AKeyWithAPassphraseIsNamedAndNobodyIsAsked) {
  Serve();
  server_->Keygen("locked", "secret");
  WriteFile(server_->dir() / "authorized_keys", ReadAll(server_->dir() / "locked.pub"));
  server_->WriteConfig("  IdentityFile " + (server_->dir() / "locked"));
  Connect();
  EXPECT_THAT(probe_.error(), AllOf(HasSubstr("locked has a passphrase"), HasSubstr("ssh-add ")));
}

// B2
TEST_F(SshFaultTest, AnAgentHoldsTheKeyThatFilesDoNot) {
  Serve();
  server_->Keygen("locked", "secret");
  WriteFile(server_->dir() / "authorized_keys", ReadAll(server_->dir() / "locked.pub"));
  std::string socket = dir_ / "agent.sock";
  os::SpawnSpec spec;
  spec.argv = {"ssh-agent", "-D", "-a", socket};
  spec.env = {"PATH=/usr/bin:/bin"};
  auto ssh_agent = os::Spawn(spec);
  ASSERT_TRUE(ssh_agent.ok());
  EXPECT_TRUE(Await([&] { return std::filesystem::exists(socket); }));
  WriteFile(dir_ / "askpass", "#!/bin/sh\necho secret\n", 0700);
  EXPECT_EQ(RunProgram({"env", "SSH_AUTH_SOCK=" + socket, "SSH_ASKPASS=" + (dir_ / "askpass"),
                        "SSH_ASKPASS_REQUIRE=force", "ssh-add", "-q", server_->dir() / "locked"}),
            0);
  server_->WriteConfig("  IdentityAgent " + socket);
  Connect();
  EXPECT_TRUE(probe_.stream) << probe_.error();
  kill(ssh_agent->pid, SIGKILL);
  (void)os::WaitAndReap(ssh_agent->pidfd.get());
}

// B3
TEST_F(SshFaultTest, AServerThatNeverAnswersTimesOut) {
  Serve();
  timeout_ = std::chrono::seconds(1);
  Listener silent;
  server_->WriteConfig(absl::StrCat("  Port ", silent.port));
  Connect();
  EXPECT_THAT(probe_.error(), HasSubstr("Timeout"));
}

// B3: on Ctrl-C.
TEST_F(SshFaultTest, AServerThatNeverAnswersCanBeGivenUp) {
  Serve();
  timeout_ = std::chrono::hours(1);
  Listener silent;
  server_->WriteConfig(absl::StrCat("  Port ", silent.port));
  Begin();
  pollfd p{silent.fd.get(), POLLIN, 0};
  ASSERT_EQ(poll(&p, 1, 20000), 1);
  probe_.connection.reset();
  transport_.reset();  // would take the hour
  EXPECT_FALSE(probe_.done());
}

TEST_F(SshFaultTest, ARefusedConnectionNamesAddressAndPort) {
  Serve();
  uint16_t port = Listener().port;
  server_->WriteConfig(absl::StrCat("  Port ", port));
  Connect();
  EXPECT_EQ(probe_.error(),
            absl::StrCat("connect to 127.0.0.1 port ", port, ": Connection refused"));
}

// A15
TEST_F(SshFaultTest, ANameThatCannotBeResolvedIsItsOwnError) {
  Serve();
  Connect("no-such-host.invalid");
  ASSERT_TRUE(probe_.failed);
  // Without a name server nobody can tell whether the name exists.
  EXPECT_TRUE(IsUnknownHost(*probe_.failed) || absl::IsUnavailable(*probe_.failed));
  EXPECT_THAT(probe_.error(), HasSubstr("resolve the name no-such-host.invalid: "));
}

// B4
TEST_F(SshFaultTest, ADroppedConnectionIsTriedAgain) {
  Serve("MaxStartups 1\nLoginGraceTime 60");
  os::UniqueFd holder = RawConnection(server_->port());
  ASSERT_TRUE(server_->AwaitLog("Connection from 127.0.0.1"));
  Begin();
  EXPECT_TRUE(
      Await([&] { return absl::StrContains(ReadAll(server_->dir() / "log"), "drop connection"); }));
  holder.Reset();
  ASSERT_TRUE(Await([&] { return probe_.done(); }));
  EXPECT_TRUE(probe_.stream) << probe_.error();
}

// B4
TEST_F(SshFaultTest, AConnectionThatIsAlwaysDroppedNamesMaxStartups) {
  Serve("MaxStartups 1\nLoginGraceTime 60");
  os::UniqueFd holder = RawConnection(server_->port());
  ASSERT_TRUE(server_->AwaitLog("Connection from 127.0.0.1"));
  Connect();
  EXPECT_THAT(probe_.error(), HasSubstr("MaxStartups"));
}

// B5
TEST_F(SshFaultTest, WorksBehindEveryLoginShell) {
  for (std::string shell : {"sh", "bash", "tcsh", "fish"}) {
    Serve("ForceCommand " + shell + " -c \"$SSH_ORIGINAL_COMMAND\"");
    Connect();
    ASSERT_TRUE(probe_.stream) << shell << ": " << probe_.error();
    EXPECT_TRUE(Echoes(probe_.stream.get(), "hello")) << shell;
  }
}

// B5
TEST_F(SshFaultTest, SkipsWhatAStartupFileSays) {
  std::string shell = "; eval \"$SSH_ORIGINAL_COMMAND\"";
  Serve("ForceCommand read -r answer; echo Welcome; printf 'no newline'" + shell);
  Connect();
  EXPECT_TRUE(probe_.stream) << probe_.error();
  Serve("ForceCommand echo '  Loading modules'; yes 2>/dev/null | head -c 80000" + shell);
  Connect();
  EXPECT_THAT(probe_.error(), AllOf(HasSubstr("64 KiB"), HasSubstr("\"Loading modules\"")));
  Serve("ForceCommand echo This account is closed.; exit 0" + shell);
  Connect();
  EXPECT_THAT(probe_.error(), AllOf(HasSubstr("the shell there ended with status 0"),
                                    HasSubstr("\"This account is closed.\""),
                                    HasSubstr("a start-up file of the login shell")));
}

// B7
TEST_F(SshFaultTest, AnAgentThatCannotRunThereSaysWhy) {
  Serve();
  WriteFile(
      dir_ / "dtrain-agent",
      "#!/bin/sh\necho \"$0: /lib/libc.so.6: version \\`GLIBC_2.36' not found\" >&2\nexit 1\n",
      0700);
  Connect();
  EXPECT_THAT(probe_.error(), HasSubstr("C library is older"));
}

TEST_F(SshFaultTest, AnAgentOnAKernelThatIsTooOldSaysSo) {
  Serve();
  std::filesystem::create_symlink(ProgramPath("dtrain-agent"), dir_ / "real");
  WriteFile(dir_ / "dtrain-agent",
            "#!/bin/sh\nexec setarch --uname-2.6 " + (dir_ / "real") + " \"$@\"\n", 0700);
  Connect();
  EXPECT_THAT(probe_.error(), AllOf(HasSubstr("Linux 2.6, dtrain needs 4.18"),
                                    HasSubstr("a container has its host's kernel")));
}

// B7
TEST_F(SshFaultTest, AnAgentForAnotherMachineIsNotSent) {
  Serve();
  WriteFile(dir_ / "dtrain-agent",
            std::string("\177ELF\2\1\1\0\0\0\0\0\0\0\0\0\3\0\267\0", 20) + Blob(1000), 0700);
  Connect();
  EXPECT_THAT(probe_.error(), HasSubstr("has an agent for aarch64 only"));
  // The same, for a file whose header does not tell.
  WriteFile(dir_ / "dtrain-agent", std::string("\177ELF\2\1\1\0", 8) + Blob(1000), 0700);
  probe_ = Probe();
  transport_.reset();
  agent_.reset();
  Connect();
  EXPECT_THAT(probe_.error(), HasSubstr("built for another architecture"));
}

}  // namespace
}  // namespace dtrain::transport
