// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/ssh_transport.h"

#include <cstring>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "launcher/transport/ssh_config.h"
#include "tests/component/transport/ssh_server.h"

namespace dtrain::transport {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class SshTransportTest : public TransportTest {
 protected:
  SshTransportTest() {
    unsetenv("SSH_AUTH_SOCK");
    SetAgent(EchoAgent());
  }
  void SetAgent(const std::string& text) {
    WriteFile(dir_ / "dtrain-agent", text, 0700);
    probe_ = Probe();
    transport_.reset();
    agent_ = std::make_unique<AgentBinary>(loop_, dir_ / "dtrain-agent");
  }
  void Serve(const std::string& sshd_lines = "") {
    probe_ = Probe();
    transport_.reset();
    server_ = std::make_unique<SshServer>(sshd_lines);
    ASSERT_TRUE(server_->listening());
  }
  SshTransport& NewTransport() {
    probe_ = Probe();
    SshOptions options;
    options.config_file = server_->config();
    options.connect_timeout = timeout_;
    options.on_detail = [this](const std::string& text) { detail_ = text; };
    transport_ = std::make_unique<SshTransport>(loop_, options, *agent_);
    return *transport_;
  }
  void Begin(const std::string& host = "node1") {
    NewTransport();
    probe_.connection = transport_->Connect({host, "", 0}, probe_.callbacks());
  }
  void Connect(const std::string& host = "node1") {
    Begin(host);
    ASSERT_TRUE(Await([&] { return probe_.done(); }));
  }

  std::string KeyOf(const std::string& name) const {
    return ReadAll(server_->dir() / (name + ".pub"));
  }
  void ConnectsByOpenSsh(const std::string& why) {
    detail_.clear();
    Connect();
    ASSERT_TRUE(probe_.stream) << probe_.error();
    EXPECT_TRUE(Echoes(probe_.stream.get(), "hello"));
    EXPECT_THAT(detail_, HasSubstr("node1 is connected to by OpenSSH"));
    EXPECT_THAT(detail_, HasSubstr(why));
  }

  Duration timeout_ = std::chrono::seconds(10);
  std::string detail_;
  std::unique_ptr<AgentBinary> agent_;
  std::unique_ptr<SshServer> server_;
  std::unique_ptr<SshTransport> transport_;
  Probe probe_;
};

TEST_F(SshTransportTest, PushesTheAgentOnceAndThenFindsIt) {
  Serve();
  SetAgent(EchoAgent() + "#" + Blob(3 << 20));
  Connect();
  ASSERT_TRUE(probe_.stream) << probe_.error();
  EXPECT_THAT(probe_.phases,
              ElementsAre(Phase::kConnecting, Phase::kAuthenticating, Phase::kLoginShell,
                          Phase::kStartingAgent, Phase::kPushingAgent));
  EXPECT_TRUE(Echoes(probe_.stream.get(), Blob(8 << 20)));
  Connect();
  ASSERT_TRUE(probe_.stream) << probe_.error();
  EXPECT_THAT(probe_.phases, ElementsAre(Phase::kConnecting, Phase::kAuthenticating,
                                         Phase::kLoginShell, Phase::kStartingAgent));
  EXPECT_TRUE(Echoes(probe_.stream.get(), "hello"));
  EXPECT_TRUE(probe_.connection->CloseReason().ok());
}

TEST_F(SshTransportTest, NewKeysInTheMiddleOfAStreamLoseNothing) {
  Serve("RekeyLimit 1M");
  Connect();
  ASSERT_TRUE(probe_.stream) << probe_.error();
  EXPECT_TRUE(Echoes(probe_.stream.get(), Blob(16 << 20)));
}

// Nothing reads at our end for a while: what is on its way waits, in bounded memory, and arrives.
TEST_F(SshTransportTest, AStreamThatIsNotReadWaitsAndGoesOn) {
  Serve();
  constexpr size_t kSize = 40 << 20;
  SetAgent(absl::StrCat("#!/bin/sh\necho 'DTRAIN-AGENT/1 ready'\nhead -c ", kSize,
                        " /dev/zero\necho done >&2\nexec cat\n"));
  Connect();
  ASSERT_TRUE(probe_.stream) << probe_.error();
  // While it does not flow, the other direction still does.
  std::string text = "hello";
  ASSERT_EQ(send(probe_.stream.get(), text.data(), text.size(), 0), 5);
  size_t got = 0;
  std::vector<char> buffer(1 << 20);
  TimePoint deadline = Clock::now() + kDeadline;
  while (got < kSize + text.size() && Clock::now() < deadline) {
    pollfd p{probe_.stream.get(), POLLIN, 0};
    poll(&p, 1, 1000);
    ssize_t n = recv(probe_.stream.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n > 0) got += static_cast<size_t>(n);
  }
  EXPECT_EQ(got, kSize + text.size());
}

TEST_F(SshTransportTest, TheAgentEndsWithItsConnection) {
  Serve();
  SetAgent(EchoAgent("echo $$ >" + (dir_ / "pid")));
  Connect();
  ASSERT_TRUE(probe_.stream) << probe_.error();
  pid_t pid = std::stoi(ReadAll(dir_ / "pid"));
  EXPECT_TRUE(ProcessRuns(pid));
  probe_.connection.reset();
  EXPECT_TRUE(Await([&] { return !ProcessRuns(pid); }));
  transport_.reset();
  EXPECT_TRUE(Await([&] { return server_->Sessions().empty(); }));
}

TEST_F(SshTransportTest, WhatWasWrittenBeforeTheEndArrives) {
  Serve();
  SetAgent("#!/bin/sh\necho 'DTRAIN-AGENT/1 ready'\ncat >" + (dir_ / "got") + "; mv " +
           (dir_ / "got") + " " + (dir_ / "all") + "\n");
  Connect();
  ASSERT_TRUE(probe_.stream) << probe_.error();
  std::string text = Blob(100000);
  ASSERT_EQ(send(probe_.stream.get(), text.data(), text.size(), 0), 100000);
  probe_.connection.reset();
  ASSERT_TRUE(Await([&] { return std::filesystem::exists(dir_ / "all"); }));
  EXPECT_TRUE(ReadAll(dir_ / "all") == text);
}

TEST_F(SshTransportTest, ManyAtOnceAllArrive) {
  Serve("MaxStartups 100");
  Probe probes[40];
  NewTransport();
  for (Probe& p : probes) p.connection = transport_->Connect({"node1", "", 0}, p.callbacks());
  EXPECT_TRUE(Await([&] {
    return std::all_of(std::begin(probes), std::end(probes), [](Probe& p) { return p.done(); });
  }));
  for (Probe& p : probes) {
    ASSERT_TRUE(p.stream) << p.error();
    EXPECT_TRUE(Echoes(p.stream.get(), "hello"));
  }
}

TEST_F(SshTransportTest, TheTargetsUserAndPortWinOverTheConfiguration) {
  Serve();
  server_->WriteConfig("  User nobody\n  Port 1");
  NewTransport();
  probe_.connection =
      transport_->Connect({"node1", UserName(), server_->port()}, probe_.callbacks());
  ASSERT_TRUE(Await([&] { return probe_.done(); }));
  EXPECT_TRUE(probe_.stream) << probe_.error();
}

TEST_F(SshTransportTest, GoesThroughProxyJumpAndProxyCommand) {
  Serve();
  server_->WriteConfig("  ProxyJump node-jump\nHost node-jump\n  HostName 127.0.0.1\nHost node1\n");
  Connect();
  ASSERT_TRUE(probe_.stream) << probe_.error();
  EXPECT_TRUE(Echoes(probe_.stream.get(), Blob(1 << 20)));
  server_->WriteConfig("  ProxyCommand ssh -F " + server_->config() +
                       " -W %h:%p node-jump\nHost node-jump\n  HostName 127.0.0.1\nHost node1\n");
  Connect();
  ASSERT_TRUE(probe_.stream) << probe_.error();
  EXPECT_TRUE(Echoes(probe_.stream.get(), Blob(1 << 20)));
  server_->WriteConfig("  ProxyCommand echo no way >&2; exit 1");
  Connect();
  EXPECT_THAT(probe_.error(), HasSubstr("ProxyCommand: no way"));
}

TEST_F(SshTransportTest, AMistakeInTheConfigurationIsQuoted) {
  Serve();
  server_->WriteConfig("  NoSuchKeyword yes");
  Connect();
  EXPECT_THAT(probe_.error(), HasSubstr("read the ssh configuration"));
  EXPECT_THAT(probe_.error(), HasSubstr("nosuchkeyword"));
}

// A killed connection, as when a machine dies: the reason is there when the stream ends.
TEST_F(SshTransportTest, ABrokenConnectionEndsTheStreamAndSaysSo) {
  Serve();
  Connect();
  ASSERT_TRUE(probe_.stream) << probe_.error();
  for (pid_t pid : server_->Sessions()) kill(pid, SIGKILL);
  EXPECT_TRUE(Ends(probe_.stream.get()));
  ASSERT_TRUE(Await([&] { return !probe_.connection->CloseReason().ok(); }));
  EXPECT_THAT(probe_.connection->CloseReason().message(), HasSubstr("ssh connection broke"));
}

// B8
TEST_F(SshTransportTest, AnAgentThatEndsSaysHow) {
  Serve();
  SetAgent("#!/bin/sh\necho 'DTRAIN-AGENT/1 ready'\nread -r x\necho broken >&2\nexit 255\n");
  Connect();
  ASSERT_TRUE(probe_.stream) << probe_.error();
  ASSERT_EQ(send(probe_.stream.get(), "\n", 1, 0), 1);
  EXPECT_TRUE(Ends(probe_.stream.get()));
  ASSERT_TRUE(Await([&] { return !probe_.connection->CloseReason().ok(); }));
  EXPECT_EQ(probe_.connection->CloseReason().message(), "the agent ended with status 255: broken");
}

// A host that stops answering in the middle of a stream must not hold up the end.
TEST_F(SshTransportTest, AStalledConnectionIsLeftBehindInTime) {
  Serve();
  Connect();
  ASSERT_TRUE(probe_.stream) << probe_.error();
  std::vector<pid_t> sessions = server_->Sessions();
  for (pid_t pid : sessions) kill(pid, SIGSTOP);
  std::string blob = Blob(1 << 20);
  while (true) {  // until nothing more fits in anywhere
    pollfd p{probe_.stream.get(), POLLOUT, 0};
    if (poll(&p, 1, 300) != 1) break;
    send(probe_.stream.get(), blob.data(), blob.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  probe_.connection.reset();
  TimePoint start = Clock::now();
  transport_.reset();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
  for (pid_t pid : sessions) kill(pid, SIGCONT);
}

// B15
TEST_F(SshTransportTest, EndlessStderrIsReadAndForgotten) {
  Serve();
  SetAgent(EchoAgent("head -c 5000000 /dev/zero | tr '\\0' x >&2"));
  Connect();
  ASSERT_TRUE(probe_.stream) << probe_.error();
  EXPECT_TRUE(Echoes(probe_.stream.get(), "hello"));
}

// B13
TEST_F(SshTransportTest, TwoPushesAtOnceBothWork) {
  Serve();
  SetAgent(EchoAgent() + "#" + Blob(3 << 20));
  Probe probes[3];
  NewTransport();
  for (Probe& p : probes) p.connection = transport_->Connect({"node1", "", 0}, p.callbacks());
  EXPECT_TRUE(Await([&] { return probes[0].done() && probes[1].done() && probes[2].done(); }));
  for (Probe& p : probes) {
    ASSERT_TRUE(p.stream) << p.error();
    EXPECT_TRUE(Echoes(p.stream.get(), "hello"));
  }
}

// To libssh a revoked key is a known one.
TEST_F(SshTransportTest, ARevokedHostKeyIsRefused) {
  Serve();
  WriteFile(server_->dir() / "known_hosts", absl::StrCat(ReadAll(server_->dir() / "known_hosts"),
                                                         "@revoked * ", KeyOf("host_key")));
  Connect();
  EXPECT_THAT(probe_.error(), HasSubstr("was revoked and"));
  EXPECT_THAT(detail_, HasSubstr("@revoked in " + server_->dir() / "known_hosts"));
  server_->Trust("host_key");
  WriteFile(server_->dir() / "revoked", KeyOf("host_key"));
  server_->WriteConfig("  RevokedHostKeys " + server_->dir() / "revoked");
  Connect();
  EXPECT_THAT(probe_.error(), HasSubstr("revoked"));
  EXPECT_THAT(detail_, HasSubstr("RevokedHostKeys"));
}

TEST_F(SshTransportTest, WhatLibsshCannotDoOpenSshDoes) {
  Serve();
  const auto file = [&](const std::string& name) { return server_->dir() / name; };
  const std::string known = ReadAll(file("known_hosts"));
  WriteFile(file("known_hosts"), absl::StrCat("@cert-authority * ", KeyOf("ca")));
  ConnectsByOpenSsh("@cert-authority in " + file("known_hosts"));
  WriteFile(file("known_hosts"), known);

  WriteFile(file("touched.pub"), "sk-ssh-ed25519@openssh.com AAAA test\n");
  server_->WriteConfig("  IdentityFile " + file("touched"));
  ConnectsByOpenSsh("the FIDO key " + file("touched"));

  const std::string key = file("id");
  setenv("DTRAIN_TEST_KEYS", key.substr(0, key.rfind('/')).c_str(), 1);
  server_->WriteConfig("  IdentityFile ${DTRAIN_TEST_KEYS}/id");
  ConnectsByOpenSsh("the tokens in ${DTRAIN_TEST_KEYS}/id");
  unsetenv("DTRAIN_TEST_KEYS");

  setenv("KRB5CCNAME", "FILE:/nowhere", 1);
  server_->WriteConfig("  GSSAPIAuthentication yes");
  ConnectsByOpenSsh("GSSAPIAuthentication and a ticket");
  unsetenv("KRB5CCNAME");

  WriteFile(file("program"), absl::StrCat("#!/bin/sh\ncat ", file("known_hosts.program"), "\n"),
            0700);
  WriteFile(file("known_hosts.program"), known);
  server_->WriteConfig("  UserKnownHostsFile /dev/null\n  KnownHostsCommand " + file("program"));
  ConnectsByOpenSsh("KnownHostsCommand");

  // They would let ssh leave, or read nothing and run nothing.
  for (const char* keyword :
       {"ForkAfterAuthentication yes", "StdinNull yes", "SessionType none", "SetEnv A=1"}) {
    server_->WriteConfig(absl::StrCat("  ", keyword));
    ConnectsByOpenSsh(std::string(keyword, strcspn(keyword, " ")));
  }

  server_->WriteConfig("  KexAlgorithms sntrup761x25519-sha512@openssh.com");
  ConnectsByOpenSsh("KexAlgorithms sntrup761x25519-sha512@openssh.com");

  // The server takes only what the authority has signed.
  server_->WriteConfig("  RemoteCommand false\n  CertificateFile " + file("id-cert.pub"));
  WriteFile(file("authorized_keys"), "");
  server_->Sign("id", {"-n", UserName()});
  ConnectsByOpenSsh("CertificateFile");
  server_->WriteConfig("");
  ConnectsByOpenSsh("the certificate " + file("id-cert.pub"));
}

// A login that somebody has typed a password for, on hosts that take nothing else.
TEST_F(SshTransportTest, AConnectionThatIsSharedIsUsed) {
  Serve();
  const std::string path = server_->dir() / "control";
  const std::vector<std::string> ssh = {"ssh", "-F", server_->config(), "-S", path};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), ssh.begin(), ssh.end());
    return RunProgram(std::move(more));
  };
  ASSERT_EQ(with({"-M", "-N", "-f", "node1"}), 0);
  WriteFile(server_->dir() / "authorized_keys", "");
  server_->WriteConfig("  ControlMaster auto\n  ControlPath " + path);
  ConnectsByOpenSsh("the connection at ControlPath " + path);
  probe_ = Probe();
  EXPECT_EQ(with({"-O", "exit", "node1"}), 0);
}

// Whether libssh obeys a keyword was looked up for these.
TEST_F(SshTransportTest, EveryKeywordOfOpenSshIsKnown) {
  Serve();
  ASSERT_EQ(RunProgram({"sh", "-c",
                        absl::StrCat("ssh -G node1 -F ", server_->config(), " >", dir_ / "dump")}),
            0);
  const std::set<std::string> matters = absl::StrSplit(
      "addressfamily bindaddress ciphers globalknownhostsfile gssapiauthentication "
      "hostbasedauthentication hostkeyalgorithms hostname identitiesonly identityagent "
      "identityfile kexalgorithms macs nohostauthenticationforlocalhost port proxyusefdpass "
      "pubkeyacceptedalgorithms pubkeyauthentication requiredrsasize stricthostkeychecking user "
      "userknownhostsfile verifyhostkeydns forkafterauthentication forwardagent ipqos "
      "permitlocalcommand rekeylimit sessiontype stdinnull tunnel",
      ' ');
  // They are about terminals, forwarding, sharing a connection, time, prompts and files that
  // OpenSSH writes, or about logins that OpenSSH makes in any case: by signed keys, host-based, by
  // Kerberos.
  const std::set<std::string> does_not_matter = absl::StrSplit(
      "addkeystoagent batchmode canonicaldomains canonicalizefallbacklocal canonicalizehostname "
      "canonicalizemaxdots canonicalizepermittedcnames casignaturealgorithms channeltimeout "
      "checkhostip clearallforwardings compression connectionattempts connecttimeout "
      "controlmaster controlpersist enableescapecommandline enablesshkeysign escapechar "
      "exitonforwardfailure fingerprinthash forwardx11 "
      "forwardx11timeout forwardx11trusted gatewayports gssapidelegatecredentials "
      "gssapikexalgorithms gssapikeyexchange gssapirenewalforcesrekey gssapitrustdns "
      "hashknownhosts host hostbasedacceptedalgorithms kbdinteractiveauthentication "
      "loglevel logverbose numberofpasswordprompts obscurekeystroketiming "
      "passwordauthentication permitremoteopen requesttty "
      "securitykeyprovider sendenv serveralivecountmax serveraliveinterval "
      "streamlocalbindmask streamlocalbindunlink syslogfacility tag tcpkeepalive "
      "tunneldevice updatehostkeys versionaddendum visualhostkey warnweakcrypto "
      "xauthlocation",
      ' ');
  std::ifstream dump(dir_ / "dump");
  size_t seen = 0;
  // As they are without a word of the user's, none of them is a reason to do without libssh.
  EXPECT_THAT(ParseSshSettings(ReadAll(dir_ / "dump")).only_openssh, testing::IsEmpty());
  for (std::string line; std::getline(dump, line); ++seen) {
    const std::string key = absl::AsciiStrToLower(line.substr(0, line.find(' ')));
    EXPECT_EQ(matters.count(key) + does_not_matter.count(key), 1u) << line;
  }
  EXPECT_GT(seen, 40u);
}

}  // namespace
}  // namespace dtrain::transport
