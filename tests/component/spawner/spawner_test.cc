// SPDX-License-Identifier: Apache-2.0
// dtrain-spawner as root, with real users, cgroups and a shepherd that tells what it finds.
#include "tests/component/spawner/harness.h"

namespace dtrain::spawner {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

using SpawnerTest = SpawnerFixture;

std::string IdsOf(uid_t uid) { return absl::StrCat(uid, " ", uid, " ", uid); }

TEST_F(SpawnerTest, AShepherdIsItsUsersAndHasWhatWasPromised) {
  Start();
  AgentEnd agent = Agent();
  const uid_t alice = users_.at("alice"), dtrain = users_.at("dtrain");
  auto [accepted, client] = UserConnection(alice);
  Packet packet = agent.Ask(ByConnection("job-1"), {accepted.get()});
  const Spawned spawned = packet.As<Spawned>();
  EXPECT_EQ(spawned.header.tag, 5u);
  EXPECT_EQ(spawned.name.uid, alice);
  EXPECT_STREQ(spawned.account, "alice");
  EXPECT_EQ(spawned.link, absl::StrCat(base_, "/run/jobs/", alice, ".job-1.0/link.sock"));
  EXPECT_EQ(spawned.cgroup, absl::StrCat(cgroup_->path(), "/jobs/u", alice, "/job-1.0"));
  ASSERT_EQ(packet.fds.size(), 2u);

  UniqueFd link = ConnectToLink(spawned.link);
  ASSERT_TRUE(link);
  ucred peer = {};
  socklen_t size = sizeof(peer);
  ASSERT_EQ(getsockopt(link.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size), 0);
  EXPECT_EQ(peer.uid, 0u) << "so that an agent knows that it is the real one";
  Shepherd shepherd(std::move(link));
  EXPECT_EQ(shepherd["uid"], IdsOf(alice));
  EXPECT_EQ(shepherd["gid"], IdsOf(alice));
  EXPECT_EQ(shepherd["groups"], absl::StrCat(kGpu, " ", alice));
  EXPECT_EQ(shepherd["fds"], "0 1 2 3 4 5") << "5 is the connection";
  EXPECT_EQ(shepherd["regained"], "0");
  EXPECT_EQ(shepherd["dumpable"], "0");
  EXPECT_EQ(shepherd["no_new_privs"], "1");
  EXPECT_EQ(shepherd["effective"], "\t0000000000000000");
  EXPECT_EQ(shepherd["ignored"], "\t0000000000001000") << "SIGPIPE, its own choice";
  EXPECT_EQ(shepherd["umask"], "22");
  EXPECT_EQ(shepherd["oom_score_adj"], "0");
  EXPECT_EQ(shepherd["spared"], "0");
  EXPECT_EQ(shepherd["directory"], "/");
  EXPECT_EQ(shepherd["nonblocking"], "1");
  EXPECT_EQ(shepherd["seals"], "15");
  EXPECT_EQ(shepherd["job"], "job-1");
  EXPECT_EQ(shepherd["attempt"], "0");
  EXPECT_EQ(shepherd["lease_ms"], "10000");
  EXPECT_EQ(shepherd["grace_ms"], "2000");
  EXPECT_EQ(shepherd["agent_uid"], absl::StrCat(dtrain));
  EXPECT_EQ(shepherd["agent_gid"], absl::StrCat(dtrain));
  EXPECT_THAT(shepherd["cgroup"],
              ::testing::EndsWith(absl::StrCat("/jobs/u", alice, "/job-1.0/shepherd")));
  EXPECT_THAT(shepherd.env(),
              UnorderedElementsAre("HOME=/home/alice", "USER=alice", "LOGNAME=alice",
                                   "SHELL=/bin/sh", "PATH=/usr/local/bin:/usr/bin:/bin"));
  EXPECT_EQ(shepherd.Do("leave " + cgroup_->path()), "0\n") << "it stays in its job's cgroup";

  char words[64] = {};
  ASSERT_TRUE(IsReadable(packet.fds[1].get()));
  EXPECT_GT(read(packet.fds[1].get(), words, sizeof(words)), 0);
  EXPECT_STREQ(words, "a word\n");
  EXPECT_FALSE(IsReadable(packet.fds[0].get(), 0)) << "its pidfd: it runs";
  EXPECT_EQ(agent.Ask(Kill(spawned.name)).header().type, Type::kDone);
  const Ended ended = agent.ReadEvent().As<Ended>();
  EXPECT_STREQ(ended.name.job, "job-1");
  EXPECT_EQ(ended.signal, SIGKILL);
  EXPECT_TRUE(IsReadable(packet.fds[0].get()));
  EXPECT_EQ(access(spawned.cgroup, F_OK), -1);
  EXPECT_EQ(access(absl::StrCat(base_, "/run/jobs/", alice, ".job-1.0").c_str(), F_OK), -1);
  EXPECT_TRUE(agent.List().empty());
}

TEST_F(SpawnerTest, JobsShareNoSessionAndNoKeyring) {
  Start();
  AgentEnd agent = Agent();
  std::vector<std::string> keyrings;
  for (const char* job : {"a", "b"}) {
    const Spawned spawned = agent.Ask(ByAccount(job, "alice")).As<Spawned>();
    Shepherd shepherd(ConnectToLink(spawned.link));
    keyrings.push_back(shepherd["keyring"]);
  }
  EXPECT_NE(keyrings[0], keyrings[1]);
}

// Only the agent's group, and only to the socket.
TEST_F(SpawnerTest, OthersDoNotReachAShepherd) {
  Start();
  AgentEnd agent = Agent();
  const Spawned spawned = agent.Ask(ByAccount("a", "alice")).As<Spawned>();
  for (const auto& [user, uid] : users_) {
    UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const As as(uid);
    EXPECT_EQ(ConnectTo(fd.get(), spawned.link), user == "dtrain") << user;
    EXPECT_NE(faccessat(AT_FDCWD, (base_ + "/run/jobs").c_str(), R_OK, AT_EACCESS), 0);
  }
}

TEST_F(SpawnerTest, WhoMayNotIsRefusedWithTheReason) {
  Configure("deny-users = mallory\nallow-groups = gpu\n");
  Start();
  AgentEnd agent = Agent();
  const std::pair<const char*, const char*> rows[] = {
      {"root", "allow-root"},    {"system", "min-uid"},          {"locked", "not in /etc/shells"},
      {"mallory", "deny-users"}, {"dtrain", "agent's own user"}, {"nobody-at-all", "look up"}};
  for (const auto& [account, why] : rows) {
    const Refused refused = agent.AskAndBeRefused(ByAccount("a", account));
    EXPECT_THAT(refused.words, HasSubstr(why));
    EXPECT_THAT(Log(), HasSubstr(refused.words));
  }
  EXPECT_STREQ(agent.Ask(ByAccount("a", "alice")).As<Spawned>().account, "alice");
  Write("etc/nologin", "");
  EXPECT_THAT(agent.AskAndBeRefused(ByAccount("b", "alice")).words, HasSubstr("nologin"));
  // However many users try what they may not: that is no breach of the agent's.
  for (int i = 0; i < 20; ++i) agent.AskAndBeRefused(ByAccount("a", "system"));
  EXPECT_EQ(agent.List().size(), 1u);
}

TEST_F(SpawnerTest, PamRefusesWithItsReason) {
  Start();
  AgentEnd agent = Agent();
  Write("etc/pam.d/dtrain", "account required pam_deny.so\n");
  Refused refused = agent.AskAndBeRefused(ByAccount("a", "alice"));
  EXPECT_EQ(refused.stage, Stage::kPolicy);
  EXPECT_THAT(refused.words, HasSubstr("PAM (service dtrain) refuses alice: "));
  EXPECT_THAT(Log(), HasSubstr(refused.words));
  // As chage -E leaves it; mallory's has not expired.
  Write("etc/shadow", "alice:*:19000:0:99999:7::100:\nmallory:*:19000:0:99999:7:::\n");
  Write("etc/pam.d/dtrain", "account required pam_unix.so\n");
  EXPECT_THAT(agent.AskAndBeRefused(ByAccount("a", "alice")).words, HasSubstr("has expired"));
  EXPECT_STREQ(agent.Ask(ByAccount("a", "mallory")).As<Spawned>().account, "mallory");
  // A module that wants to talk finds nobody.
  Write("etc/pam.d/dtrain", "account required pam_echo.so says\naccount required pam_deny.so\n");
  EXPECT_THAT(agent.AskAndBeRefused(ByAccount("a", "alice")).words, HasSubstr("says; "));
  // Without the service's file "other" decides.
  std::filesystem::remove(base_ + "/etc/pam.d/dtrain");
  EXPECT_THAT(agent.AskAndBeRefused(ByAccount("a", "alice")).words, HasSubstr("PAM"));
  EXPECT_EQ(agent.List().size(), 1u);
}

TEST_F(SpawnerTest, PamIsNotAskedWhenItIsOff) {
  Configure("pam = off\n");
  Write("etc/pam.d/dtrain", "account required pam_deny.so\n");
  Start();
  AgentEnd agent = Agent();
  EXPECT_STREQ(agent.Ask(ByAccount("a", "alice")).As<Spawned>().account, "alice");
}

TEST_F(SpawnerTest, RootNeedsPermissionAndAConnection) {
  Configure("allow-root = yes\ntrust-agent-tls = no\n");
  Start();
  AgentEnd agent = Agent();
  EXPECT_EQ(agent.AskAndBeRefused(ByAccount("a", "root")).stage, Stage::kPolicy);
  EXPECT_EQ(agent.AskAndBeRefused(ByAccount("a", "alice")).stage, Stage::kPolicy);
  auto [accepted, client] = UserConnection(0);
  const Spawned spawned = agent.Ask(ByConnection("a"), {accepted.get()}).As<Spawned>();
  EXPECT_EQ(spawned.name.uid, 0u);
  EXPECT_EQ(Shepherd(ConnectToLink(spawned.link))["uid"], "0 0 0");
}

TEST_F(SpawnerTest, WhatDoesNotStartIsToldAndLeavesNothing) {
  shepherd_ = base_ + "/missing";
  Start();
  AgentEnd agent = Agent();
  const Refused refused = agent.AskAndBeRefused(ByAccount("a", "alice"));
  EXPECT_EQ(refused.stage, Stage::kExec);
  EXPECT_EQ(refused.error, ENOENT);
  EXPECT_THAT(refused.words, HasSubstr("/missing: No such file"));
  EXPECT_TRUE(Vanishes(absl::StrCat(base_, "/run/jobs/", users_.at("alice"), ".a.0")));
  EXPECT_TRUE(Vanishes(absl::StrCat(cgroup_->path(), "/jobs/u", users_.at("alice"))));
  EXPECT_EQ(agent.AskAndBeRefused(ByAccount("a", "alice")).stage, Stage::kExec)
      << "and not: is there";
}

TEST_F(SpawnerTest, AShepherdThatEndsByItselfIsReportedWithItsCode) {
  Start();
  AgentEnd agent = Agent();
  const Spawned spawned = agent.Ask(ByAccount("a", "alice")).As<Spawned>();
  Shepherd shepherd(ConnectToLink(spawned.link));
  EXPECT_EQ(shepherd["session"], "1");
  EXPECT_EQ(agent.Ask(ByAccount("a", "alice")).As<Refused>().stage, Stage::kBusy)
      << "its name is taken";
  shepherd.Do("exit 7");
  const Ended ended = agent.ReadEvent().As<Ended>();
  EXPECT_EQ(ended.exit_code, 7);
  EXPECT_EQ(ended.signal, 0);
  EXPECT_EQ(agent.Ask(Kill(spawned.name)).As<Refused>().stage, Stage::kUnknown);
  agent.Ask(ByAccount("a", "alice")).As<Spawned>();
}

TEST_F(SpawnerTest, DaemonsInCgroupsOfTheirOwnAreGoneAfterKill) {
  Start();
  AgentEnd agent = Agent();
  const Spawned spawned = agent.Ask(ByAccount("a", "alice")).As<Spawned>();
  Shepherd shepherd(ConnectToLink(spawned.link));

  EXPECT_EQ(shepherd.Do("daemons 50"), std::string(50, 'y') + "\n");
  const os::Cgroup job(spawned.cgroup);
  EXPECT_GE(job.Processes().size(), 51u);
  std::vector<UniqueFd> daemons;
  for (const pid_t pid : job.Processes()) daemons.push_back(*os::OpenPidfd(pid));
  agent.Ask(Kill(spawned.name));
  EXPECT_STREQ(agent.ReadEvent().As<Ended>().name.job, "a");
  for (const UniqueFd& pidfd : daemons) EXPECT_TRUE(IsReadable(pidfd.get()));
  EXPECT_EQ(access(spawned.cgroup, F_OK), -1);
}

TEST_F(SpawnerTest, AUserMakesOnlySoManyCgroupsAndAllAreRemoved) {
  Start();
  AgentEnd agent = Agent();
  const Spawned spawned = agent.Ask(ByAccount("a", "alice")).As<Spawned>();
  Shepherd shepherd(ConnectToLink(spawned.link));
  int made = 0;
  ASSERT_TRUE(absl::SimpleAtoi(shepherd.Do("cgroups 5000"), &made));
  EXPECT_GT(made, 10);
  EXPECT_LE(made, 1000);
  agent.Ask(Kill(spawned.name));
  EXPECT_STREQ(agent.ReadEvent().As<Ended>().name.job, "a");
  EXPECT_EQ(access(spawned.cgroup, F_OK), -1);
}

TEST_F(SpawnerTest, JobsOutliveASpawnerThatIsKilled) {
  Start();
  AgentEnd agent = Agent();
  SpawnRequest request =
      ByAccount(std::string(64, 'j'), "alice");  // its link's path is too long to bind
  request.attempt = 4'294'967'295u;
  Packet packet = agent.Ask(request);
  const Spawned spawned = packet.As<Spawned>();
  ASSERT_EQ(packet.fds.size(), 2u);
  KillSpawner();
  EXPECT_EQ(agent.ReadAnswer().bytes, "");
  // What lost its cgroup, or its folder.
  std::filesystem::create_directories(base_ + "/run/jobs/4711.other.0");
  std::filesystem::create_directories(cgroup_->path() + "/jobs/u4711/lost.0");

  Start();
  EXPECT_FALSE(IsReadable(packet.fds[0].get(), 0)) << "its shepherd runs";
  agent = Agent();
  EXPECT_TRUE(Vanishes(cgroup_->path() + "/jobs/u4711"));
  EXPECT_EQ(access((base_ + "/run/jobs/4711.other.0").c_str(), F_OK), -1);
  const std::vector<JobEntry> jobs = agent.List();
  ASSERT_EQ(jobs.size(), 1u) << Log();
  EXPECT_STREQ(jobs[0].name.job, request.job);
  EXPECT_EQ(jobs[0].name.attempt, request.attempt);
  EXPECT_EQ(jobs[0].name.uid, users_.at("alice"));
  EXPECT_EQ(jobs[0].state, State::kRunning);
  EXPECT_EQ(jobs[0].lease_ms, 10'000u);
  EXPECT_EQ(jobs[0].grace_ms, 2'000u);
  EXPECT_STREQ(jobs[0].link, spawned.link);
  EXPECT_STREQ(jobs[0].cgroup, spawned.cgroup);
  EXPECT_EQ(Shepherd(ConnectToLink(jobs[0].link))["job"], request.job);
  EXPECT_EQ(agent.AskAndBeRefused(request).stage, Stage::kBusy);
  EXPECT_EQ(agent.Ask(Kill(jobs[0].name)).header().type, Type::kDone);
  EXPECT_EQ(agent.ReadEvent().As<Ended>().exit_code, -1);
  EXPECT_TRUE(IsReadable(packet.fds[0].get()));
  EXPECT_TRUE(agent.List().empty());
}

TEST_F(SpawnerTest, ALookUpThatHangsHoldsNobodyUp) {
  Start();
  AgentEnd agent = Agent();
  const size_t before = Descriptors();
  // Whoever opens it waits for a writer.
  const std::string passwd = base_ + "/etc/passwd";
  ASSERT_EQ(rename(passwd.c_str(), (base_ + "/passwd").c_str()), 0);
  ASSERT_EQ(mkfifo(passwd.c_str(), 0644), 0);
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 6; ++i) {
    auto [accepted, client] = UserConnection(users_.at("alice"));
    ASSERT_TRUE(agent.Send(ByConnection(absl::StrCat("j", i)), {accepted.get()}));
    clients.push_back(std::move(client));
  }
  const std::vector<JobEntry> jobs = agent.List();
  ASSERT_EQ(jobs.size(), 6u);
  EXPECT_EQ(SettledDescriptors(before + 2 * 4), before + 2 * 4) << "four look-ups";
  for (const JobEntry& job : jobs) {
    EXPECT_EQ(job.state, State::kAsking);
    ASSERT_TRUE(agent.Send(Kill(job.name)));
    EXPECT_EQ(agent.ReadAnswer().header().type, Type::kDone);
    EXPECT_EQ(agent.ReadAnswer().As<Refused>().stage, Stage::kKilled);
  }
  EXPECT_TRUE(agent.List().empty());
  ASSERT_EQ(rename((base_ + "/passwd").c_str(), passwd.c_str()), 0);
  agent.Ask(ByAccount("a", "alice")).As<Spawned>();
  EXPECT_EQ(SettledDescriptors(before + 2), before + 2) << "those of a job that runs";
}

TEST_F(SpawnerTest, JobsAreLimitedWhereTheKernelLimitsCgroups) {
  const std::string has = FileText(cgroup_->path() + "/cgroup.controllers");
  Configure("require-limits = yes\njob-memory = 1G\n");
  if (has.find("memory") == has.npos || has.find("pids") == has.npos) {
    Fork({});
    EXPECT_EQ(WaitForEnd(), 1);
    EXPECT_THAT(Log(), HasSubstr("are not limited: no controller of cgroups"));
    EXPECT_THAT(Log(), HasSubstr("and require-limits = yes"));
    Configure("");
    Start();
    AgentEnd agent = Agent();
    EXPECT_STREQ(agent.Ask(ByAccount("a", "alice")).As<Spawned>().account, "alice");
    return;
  }
  Start();
  AgentEnd agent = Agent();
  const std::string job = agent.Ask(ByAccount("a", "alice")).As<Spawned>().cgroup;
  const std::string user = job.substr(0, job.rfind('/'));
  const std::string jobs = user.substr(0, user.rfind('/'));
  const uint64_t half = std::stoull(FileText("/proc/sys/kernel/pid_max")) / 2 - 1;
  EXPECT_EQ(std::stoull(FileText(job + "/pids.max")), std::min<uint64_t>(32768, half));
  EXPECT_EQ(std::stoull(FileText(user + "/pids.max")), std::min<uint64_t>(65536, half));
  EXPECT_EQ(FileText(job + "/memory.max"), "1073741824\n");
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  EXPECT_LE(atol(FileText(jobs + "/memory.max").c_str()), pages * page - (long{2} << 30));
  for (const char* limit : {"/memory.max", "/pids.max", "/cgroup.subtree_control"}) {
    const As as(users_.at("alice"));
    EXPECT_NE(faccessat(AT_FDCWD, (job + limit).c_str(), W_OK, AT_EACCESS), 0) << limit;
  }
}

// Older systemd starts the next spawner where no process may be once there are controllers below.
TEST_F(SpawnerTest, NothingIsLimitedWhereThatWouldBarTheNextSpawner) {
  start_in_ = "";
  Start();
  EXPECT_THAT(Log(), HasSubstr("are not limited: neither --limit nor a cgroup named spawner"));
  AgentEnd agent = Agent();
  agent.Ask(ByAccount("a", "alice")).As<Spawned>();
  EXPECT_EQ(absl::StripAsciiWhitespace(FileText(cgroup_->path() + "/cgroup.subtree_control")), "");
  KillSpawner();
  Start();
  agent = Agent();
  EXPECT_EQ(agent.List().size(), 1u);
}

TEST_F(SpawnerTest, WithAStrictMapTheAgentsWordIsGoodForAccountsThatAreNamed) {
  Configure("map = strict\n");
  Start();
  AgentEnd agent = Agent();
  const auto refused = [&] { return agent.Ask(ByAccount("a", "alice")).As<Refused>(); };
  EXPECT_THAT(refused().words, HasSubstr("read /etc/dtrain/accounts"));
  Write("etc/dtrain/accounts", "bob.b = bob\n");
  EXPECT_THAT(refused().words, HasSubstr("/etc/dtrain/accounts does not name alice"));
  Write("etc/dtrain/accounts", "alice.a = alice\n");
  ASSERT_EQ(chown((base_ + "/etc/dtrain/accounts").c_str(), users_.at("dtrain"), 0), 0);
  EXPECT_THAT(refused().words, HasSubstr("must be a file of root's"));
  ASSERT_EQ(chown((base_ + "/etc/dtrain/accounts").c_str(), 0, 0), 0);
  EXPECT_STREQ(agent.Ask(ByAccount("a", "alice")).As<Spawned>().account, "alice");
}

// ExecStopPost= comes between them, in a cgroup beside the spawner's.
TEST_F(SpawnerTest, LimitsAreTakenAwayForTheNextSpawnerWhichSetsThemAgain) {
  start_in_ = "";
  Configure("job-memory = 1G\n");
  Start({"--limit"});
  AgentEnd agent = Agent();
  const std::string job = agent.Ask(ByAccount("a", "alice")).As<Spawned>().cgroup;
  const std::string limits[] = {job + "/pids.max", job + "/memory.max"};
  const std::string given = FileText(cgroup_->path() + "/cgroup.subtree_control");
  for (int i = 0; i < 2; ++i) {
    KillSpawner();
    start_in_ = "/.control";
    Fork({"--unlimit"});
    EXPECT_EQ(WaitForEnd(), 0) << Log();
    EXPECT_EQ(rmdir((cgroup_->path() + start_in_).c_str()), 0) << "as systemd does";
    start_in_ = "";
    for (const std::string& path : {cgroup_->path(), cgroup_->path() + "/jobs"}) {
      EXPECT_EQ(absl::StripAsciiWhitespace(FileText(path + "/cgroup.subtree_control")), "");
    }
    Start({"--limit"});
    agent = Agent();
    EXPECT_EQ(agent.List().size(), 1u);
    EXPECT_EQ(FileText(cgroup_->path() + "/cgroup.subtree_control"), given);
    if (given.find("pids") == given.npos || given.find("memory") == given.npos) continue;
    EXPECT_EQ(FileText(limits[0]), "32768\n");
    EXPECT_EQ(FileText(limits[1]), "1073741824\n");
  }
}

// A lease of 0.2 s and a patience of 1 s.
TEST_F(SpawnerTest, JobsOfASilentAgentEnd) {
  Start({"--patience", "1"});
  AgentEnd agent = Agent();
  SpawnRequest request = ByAccount("a", "alice");
  request.lease_ms = 200;
  request.grace_ms = 0;
  Packet packet = agent.Ask(request);
  packet.As<Spawned>();
  ASSERT_EQ(packet.fds.size(), 2u);
  using std::chrono::steady_clock;
  // For longer than that it speaks.
  auto last = steady_clock::now();
  for (const auto until = last + std::chrono::milliseconds(1500); steady_clock::now() < until;) {
    last = steady_clock::now();
    EXPECT_EQ(agent.Ask(Header{kVersion, Type::kAlive, 1}).header().type, Type::kDone);
    EXPECT_FALSE(IsReadable(packet.fds[0].get(), 100));
  }
  EXPECT_STREQ(agent.ReadEvent().As<Ended>().name.job, "a");
  EXPECT_GT(steady_clock::now() - last, std::chrono::milliseconds(1000));
}

TEST_F(SpawnerTest, WhatSigkillDoesNotEndIsReportedAndKilledOn) {
  const std::string freezer = absl::StrCat("/sys/fs/cgroup/freezer/dtrain-spawner-test-", getpid());
  if (mkdir(freezer.c_str(), 0755) != 0 && errno != EEXIST)
    GTEST_SKIP() << "needs the freezer of cgroup v1";
  Start({"--patience", "1"});
  AgentEnd agent = Agent();
  const Spawned spawned = agent.Ask(ByAccount("a", "alice")).As<Spawned>();
  const std::vector<pid_t> pids = os::Cgroup(spawned.cgroup).Processes();
  ASSERT_EQ(pids.size(), 1u);
  std::ofstream(freezer + "/cgroup.procs") << pids[0] << std::flush;
  std::ofstream(freezer + "/freezer.state") << "FROZEN" << std::flush;
  agent.Ask(Kill(spawned.name));
  const Unkillable event = agent.ReadEvent().As<Unkillable>();
  EXPECT_STREQ(event.name.job, "a");
  EXPECT_EQ(event.count, 1u);
  EXPECT_EQ(event.pids[0], static_cast<uint32_t>(pids[0]));
  EXPECT_EQ(agent.List().at(0).state, State::kKilling);
  std::ofstream(freezer + "/freezer.state") << "THAWED" << std::flush;
  EXPECT_STREQ(agent.ReadEvent().As<Ended>().name.job, "a");
  EXPECT_EQ(rmdir(freezer.c_str()), 0);
}

TEST_F(SpawnerTest, DoesNotStartWithoutWhatItNeeds) {
  const auto refuses = [&](bool without_cgroups = false) {
    Fork({}, without_cgroups);
    EXPECT_EQ(WaitForEnd(), 1);
    return Log();
  };
  Configure("min-uid = 1000\nmin_uid = 5\n");
  EXPECT_THAT(refuses(),
              HasSubstr("spawner.conf: line 2: unknown key or wrong value: min_uid = 5"));
  Configure("");
  ASSERT_EQ(chmod((base_ + "/etc/dtrain/spawner.conf").c_str(), 0664), 0);
  EXPECT_THAT(refuses(), HasSubstr("nobody else can write"));
  Configure("");
  EXPECT_THAT(refuses(true), HasSubstr("cgroup v2 is not mounted"));
  Start();
  const UniqueFd first = std::move(pidfd_);
  EXPECT_THAT(refuses(), HasSubstr("another spawner has"));
  EXPECT_TRUE(os::SendSignal(first.get(), SIGKILL).ok());
  (void)os::WaitAndReap(first.get());
}

// For measuring: DTRAIN_SPAWNER_STARTS says how many.
TEST_F(SpawnerTest, StartsOneAfterTheOther) {
  const char* wanted = getenv("DTRAIN_SPAWNER_STARTS");
  const int count = wanted != nullptr ? atoi(wanted) : 30;
  Start();
  AgentEnd agent = Agent();
  std::vector<double> ms;
  const size_t before = Descriptors();
  for (int i = 0; i < count; ++i) {
    const auto from = std::chrono::steady_clock::now();
    const Spawned spawned = agent.Ask(ByAccount(absl::StrCat("j", i), "alice")).As<Spawned>();
    ms.push_back(
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - from).count());
    agent.Ask(Kill(spawned.name));
    ASSERT_STREQ(agent.ReadEvent().As<Ended>().name.job, spawned.name.job);
  }
  std::sort(ms.begin(), ms.end());
  printf("%d starts: p50 %.2f ms, p99 %.2f ms; VmRSS %lld kB, of its own %lld kB\n", count,
         ms[ms.size() / 2], ms[ms.size() * 99 / 100], static_cast<long long>(Status("VmRSS")),
         static_cast<long long>(Status("RssAnon")));
  EXPECT_TRUE(agent.List().empty());
  EXPECT_EQ(SettledDescriptors(before), before);
}

}  // namespace
}  // namespace dtrain::spawner
