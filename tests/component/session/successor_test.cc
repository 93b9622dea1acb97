// SPDX-License-Identifier: Apache-2.0
// Jobs that outlive their launchers: a real agent, resident or private, and its bridges; the test
// plays the launchers.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/node_rank.h"
#include "common/os/account.h"
#include "common/os/environment.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"
#include "common/os/spawn.h"
#include "dtrain/v1/state.pb.h"
#include "tests/component/session/test_launcher.h"
#include "tests/support/paths.h"

namespace dtrain::session {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

const std::string kAgent = ProgramPath("dtrain-agent");
constexpr char kScript[] = "while :; do sleep 1; done";

class OutlivingTest : public ::testing::Test {
 protected:
  OutlivingTest() {
    char name[] = "/tmp/dtXXXXXX";
    home_ = mkdtemp(name);
  }
  ~OutlivingTest() override {
    for (const pid_t pid : pids_) End(pid);
    if (const pid_t kept = KeptPid(); kept != 0) {
      auto pidfd = os::OpenPidfd(kept);
      if (pidfd.ok()) {
        (void)os::SendSignal(pidfd->get(), SIGKILL);
        EXPECT_TRUE(Gone(pidfd->get()));
      }
    }
    std::error_code ignored;
    std::filesystem::remove_all(home_, ignored);
  }
  static void End(pid_t pid) {
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, nullptr, 0);
  }
  static bool Gone(int pidfd) {
    pollfd p{pidfd, POLLIN, 0};
    int n;
    do {
      n = poll(&p, 1, 20'000);
    } while (n < 0 && errno == EINTR);
    return n == 1;
  }

  // "dtrain-agent 0.1.0"
  static std::string Version() {
    char line[64] = "";
    setenv("AGENT", kAgent.c_str(), 1);  // it may have spaces
    FILE* const said = popen("\"$AGENT\" version", "r");
    EXPECT_NE(fgets(line, sizeof(line), said), nullptr);
    EXPECT_EQ(pclose(said), 0);
    const std::string words = line;
    return words.substr(words.find(' ') + 1, words.find('\n') - words.find(' ') - 1);
  }
  static v1::Hello Hello(uint64_t generation, uint32_t away_ms = 60'000) {
    v1::Hello hello;
    hello.set_protocol(rpc::kProtocolVersion);
    hello.set_build(Version());
    // Its own: of one name, another test's that runs beside it would share the cgroup, and its end.
    hello.set_job_id(absl::StrFormat("dtrain-%012x", getpid()));
    hello.set_incarnation("0123456789abcdef");
    hello.set_lease_ms(10'000);
    hello.set_grace_ms(1'000);
    hello.set_no_gpus(true);
    hello.set_probe_token(std::string(32, 't'));
    hello.set_generation(generation);
    hello.set_away_ms(away_ms);
    hello.set_launcher(absl::StrCat("launcher ", generation));
    return hello;
  }
  std::vector<std::string> Environment() const {
    std::vector<std::string> env;
    for (const std::string& each : os::OwnEnvironment()) {
      if (each.rfind("HOME=", 0) == 0 || each.rfind("XDG_", 0) == 0) continue;
      env.push_back(each);
    }
    env.push_back("HOME=" + home_);
    env.push_back("DTRAIN_AGENT_STATE=none");
    return env;
  }
  pid_t Start(std::vector<std::string> words, int stdin_fd = -1) {
    os::SpawnSpec spec;
    spec.argv = std::move(words);
    spec.argv.insert(spec.argv.begin(), kAgent);
    spec.env = Environment();
    spec.stdin_fd = stdin_fd;
    spec.stdout_fd = spec.stderr_fd = STDERR_FILENO;
    auto child = os::Spawn(spec);
    EXPECT_TRUE(child.ok()) << child.status();
    pids_.push_back(child->pid);
    return child->pid;
  }
  struct Bridge {
    pid_t pid = 0;
    os::UniqueFd stream;
  };
  Bridge Begin(const std::string& flag) {
    auto pair = os::SocketPair();
    EXPECT_TRUE(pair.ok());
    Bridge bridge;
    std::vector<std::string> words = {"bridge", "--socket"};
    if (!flag.empty()) words.push_back(flag);
    bridge.pid = Start(std::move(words), pair->second.get());
    bridge.stream = std::move(pair->first);
    return bridge;
  }
  // It says that it is ready; what comes then is gRPC's.
  static void AwaitReady(const Bridge& bridge) {
    std::string line;
    const timeval limit{40, 0};
    setsockopt(bridge.stream.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    fcntl(bridge.stream.get(), F_SETFL, 0);
    for (char c = 0; c != '\n'; line += c) {
      // With a limit it is not begun again when a child's end interrupts it, as on old kernels.
      if (TEMP_FAILURE_RETRY(read(bridge.stream.get(), &c, 1)) == 1) continue;
      FAIL() << "the bridge ended after \"" << line << "\"";
    }
    ASSERT_THAT(line, HasSubstr(" ready "));
    fcntl(bridge.stream.get(), F_SETFL, O_NONBLOCK);
  }
  // A resident agent of this user's. Its state directory.
  std::string Serve() {
    const std::string state = home_ + "/state";
    Start({"serve", "--state-dir", state});
    return state;
  }
  // A connection to it as that user, once it listens.
  static os::UniqueFd Dial(const std::string& state, uid_t uid) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::strncpy(name.sun_path, (state + "/agent.sock").c_str(), sizeof(name.sun_path) - 1);
    const TimePoint end = Clock::now() + seconds(20);
    const uid_t own = geteuid();
    os::UniqueFd fd;
    do {
      fd.Reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      EXPECT_EQ(seteuid(uid), 0);
      const int rc = connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name));
      EXPECT_EQ(seteuid(own), 0);
      if (rc == 0) break;
      poll(nullptr, 0, 10);
    } while (Clock::now() < end);
    return fd;
  }
  // A connection to the private agent, which counts as somebody who is there.
  os::UniqueFd DialKept() const {
    const TimePoint end = Clock::now() + seconds(20);
    std::error_code ignored;
    while (!std::filesystem::exists(KeptDirectory() + "/agent.sock", ignored) &&
           Clock::now() < end) {
      poll(nullptr, 0, 10);
    }
    os::UniqueFd fd = Dial(KeptDirectory(), geteuid());
    // gRPC speaks first, once the agent has taken the connection.
    pollfd first{fd.get(), POLLIN, 0};
    EXPECT_EQ(TEMP_FAILURE_RETRY(poll(&first, 1, 20'000)), 1);
    return fd;
  }
  // A launcher comes by a bridge. The bridge's pid.
  pid_t Come(TestLauncher& launcher, const std::string& flag) {
    Bridge bridge = Begin(flag);
    AwaitReady(bridge);
    launcher.Greet(std::move(bridge.stream), /*resume=*/flag == "--resume-kept");
    return bridge.pid;
  }
  std::string KeptDirectory() const {
    std::error_code ignored;
    for (const auto& run : std::filesystem::directory_iterator(home_ + "/.cache/dtrain", ignored)) {
      for (const auto& each : std::filesystem::directory_iterator(run.path(), ignored)) {
        return each.path();
      }
    }
    return "";
  }
  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  pid_t KeptPid() const {
    pid_t pid = 0;
    const std::string directory = KeptDirectory();
    if (directory.empty() || !absl::SimpleAtoi(Read(directory + "/lock"), &pid)) return 0;
    return pid;
  }
  static bool Runs(uint32_t pid) { return kill(static_cast<pid_t>(pid), 0) == 0; }
  // Whether anybody has reaped it or not.
  static bool HasEnded(pid_t pid) {
    std::ostringstream stat;
    stat << std::ifstream(absl::StrCat("/proc/", pid, "/stat")).rdbuf();
    const std::string text = stat.str();
    const size_t name_end = text.rfind(')');
    return name_end == text.npos || text.compare(name_end, 3, ") Z") == 0;
  }
  // The private agent, which has a session with `launcher`. Until nobody can reach it: a process
  // that dies may close its connections before the socket at which it listens.
  void KillKept(TestLauncher& launcher) const {
    const pid_t agent = KeptPid();
    ASSERT_NE(agent, 0);
    ASSERT_EQ(kill(agent, SIGKILL), 0);
    ASSERT_TRUE(launcher.Until([&] { return launcher.end_.has_value(); }));
    const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
    while (!HasEnded(agent) && Clock::now() < deadline) poll(nullptr, 0, 5);
    ASSERT_TRUE(HasEnded(agent));
  }

  loop::Loop loop_;
  std::string home_;
  std::vector<pid_t> pids_;
};

TEST_F(OutlivingTest, AJobOutlivesItsBridgeAndItsPrivateAgentAndItsLauncher) {
  TestLauncher first(loop_, Hello(1));
  const pid_t bridge = Come(first, "--keep");
  ASSERT_TRUE(first.Until([&] { return first.welcome_.has_value(); }));
  EXPECT_TRUE(first.welcome_->resumable());
  const uint32_t worker = first.Run(kScript);
  ASSERT_NE(worker, 0u);
  const pid_t agent = KeptPid();
  ASSERT_NE(agent, 0);
  EXPECT_EQ(getsid(agent), agent) << "the end of our session is nothing to it";

  // The connection breaks.
  End(bridge);
  ASSERT_TRUE(first.Until([&] { return first.end_.has_value(); }));
  EXPECT_TRUE(absl::IsUnavailable(*first.end_)) << *first.end_;
  Come(first, "--resume-kept");
  ASSERT_TRUE(first.Until([&] { return first.attached_; }));
  EXPECT_EQ(KeptPid(), agent);
  EXPECT_TRUE(Runs(worker));

  // The private agent dies.
  KillKept(first);
  Come(first, "--resume-kept");
  ASSERT_TRUE(first.Until([&] { return first.attached_; }));
  EXPECT_NE(KeptPid(), agent);
  EXPECT_TRUE(Runs(worker));
  EXPECT_EQ(first.retold_, 0) << "it knows all";

  // Another launcher takes the job over. The first stands still meanwhile: it hears so later.
  TestLauncher second(loop_, Hello(2));
  Come(second, "--resume-kept");
  ASSERT_TRUE(second.Until([&] { return second.retold_ == 1 && second.welcome_; }));
  EXPECT_EQ(second.said_[0].kind_case(), v1::SessionEvent::kWelcome);
  ASSERT_TRUE(second.started_.has_value());
  EXPECT_EQ(second.started_->workers(0).pid(), worker);
  ASSERT_TRUE(first.Until([&] { return first.end_.has_value(); }));
  EXPECT_TRUE(absl::IsAlreadyExists(*first.end_)) << *first.end_;
  EXPECT_EQ(first.end_->message(), "this job has another launcher now: launcher 2");

  // And is refused.
  Come(first, "--resume-kept");
  ASSERT_TRUE(first.Until([&] { return first.end_.has_value(); }));
  EXPECT_TRUE(absl::IsAlreadyExists(*first.end_)) << *first.end_;
  EXPECT_EQ(first.end_->message(), "this job has another launcher now: launcher 2");
  EXPECT_TRUE(Runs(worker));
  EXPECT_FALSE(second.end_.has_value());

  // An agent that comes then knows whose it is.
  KillKept(second);
  Come(first, "--resume-kept");
  ASSERT_TRUE(first.Until([&] { return first.end_.has_value(); }));
  EXPECT_EQ(first.end_->message(), "this job has another launcher now: launcher 2");
  Come(second, "--resume-kept");
  ASSERT_TRUE(second.Until([&] { return second.attached_; }));
  EXPECT_TRUE(Runs(worker));
  EXPECT_EQ(second.retold_, 1);
  second.End();
  EXPECT_EQ(second.exits_[0].signal(), static_cast<uint32_t>(SIGKILL));
  EXPECT_TRUE(std::filesystem::is_empty(KeptDirectory() + "/jobs"));
}

TEST_F(OutlivingTest, AnotherLauncherComesWithAnotherAgent) {
  TestLauncher first(loop_, Hello(1));
  Come(first, "--keep");
  ASSERT_TRUE(first.Until([&] { return first.welcome_.has_value(); }));
  const uint32_t worker = first.Run(kScript);
  KillKept(first);
  TestLauncher second(loop_, Hello(2));
  Come(second, "--resume-kept");
  ASSERT_TRUE(second.Until([&] { return second.retold_ == 1 && second.welcome_; }));
  EXPECT_EQ(second.started_->workers(0).pid(), worker);
  second.End();
}

// Its shepherd waits for the agent that had it.
TEST_F(OutlivingTest, AnAgentThatNeverHadAJobDoesNotSayThatItIsOver) {
  TestLauncher first(loop_, Hello(1));
  Come(first, "--keep");
  ASSERT_TRUE(first.Until([&] { return first.welcome_.has_value(); }));
  ASSERT_NE(first.Run(kScript), 0u);
  pids_.push_back(KeptPid());
  home_ += "/other";
  std::filesystem::create_directory(home_);
  const auto ask = [this] {
    TestLauncher again(loop_, Hello(1));
    Come(again, "--resume-kept");
    EXPECT_TRUE(again.Until([&] { return again.end_.has_value(); }));
    return again.end_.value_or(absl::OkStatus());
  };
  // No agent is there, and none is started.
  absl::Status end = ask();
  EXPECT_TRUE(absl::IsUnavailable(end)) << end;
  EXPECT_EQ(KeptPid(), 0);
  // One is there that has another job.
  v1::Hello of_another = Hello(1);
  of_another.set_job_id(absl::StrCat(of_another.job_id(), "-2"));
  TestLauncher another(loop_, of_another);
  Come(another, "--keep");
  ASSERT_TRUE(another.Until([&] { return another.welcome_.has_value(); }));
  ASSERT_NE(another.Run(kScript), 0u);
  end = ask();
  EXPECT_TRUE(absl::IsUnavailable(end)) << end;
  first.End();
  const TimePoint deadline = Clock::now() + std::chrono::seconds(20);
  while (!absl::IsNotFound(end = ask()) && Clock::now() < deadline) poll(nullptr, 0, 10);
  EXPECT_TRUE(absl::IsNotFound(end)) << end;
  another.End();
  pids_.push_back(KeptPid());
  home_ = std::filesystem::path(home_).parent_path();
}

// An agent of one job knows its user by number; the next one shows the job beside others of that
// user's.
TEST_F(OutlivingTest, AJobThatIsLeftToAPrivateAgentHasTheNameOfItsUser) {
  TestLauncher launcher(loop_, Hello(1));
  Come(launcher, "");
  ASSERT_TRUE(launcher.Until([&] { return launcher.welcome_.has_value(); }));
  ASSERT_NE(launcher.Run(kScript), 0u);
  v1::SessionRequest keep;
  keep.mutable_keep_job();
  launcher.Send(keep);
  const auto kept = [&] {
    return std::any_of(launcher.said_.begin(), launcher.said_.end(),
                       [](const v1::SessionEvent& event) { return event.has_kept(); });
  };
  ASSERT_TRUE(launcher.Until(kept));
  v1::JobRecord record;
  EXPECT_TRUE(record.ParseFromString(Read(absl::StrCat(
      KeptDirectory(), "/kept/", launcher.hello().job_id(), ".0.", geteuid(), "/record"))));
  EXPECT_EQ(record.uid(), geteuid());
  const auto account = os::FindAccount(geteuid());
  if (account.ok()) {
    EXPECT_EQ(record.owner(), account->name);
  }
  launcher.End();
}

TEST_F(OutlivingTest, OfTwoThatTakeItOverAtOnceTheHigherHasIt) {
  TestLauncher first(loop_, Hello(1));
  Come(first, "--keep");
  ASSERT_TRUE(first.Until([&] { return first.welcome_.has_value(); }));
  const uint32_t worker = first.Run(kScript);
  TestLauncher third(loop_, Hello(3)), second(loop_, Hello(2));
  Bridge one = Begin("--resume-kept"), two = Begin("--resume-kept");
  AwaitReady(one);
  AwaitReady(two);
  third.Greet(std::move(one.stream), true);
  second.Greet(std::move(two.stream), true);
  ASSERT_TRUE(third.Until([&] { return second.end_.has_value() && third.retold_ == 1; }));
  EXPECT_TRUE(absl::IsAlreadyExists(*second.end_)) << *second.end_;
  EXPECT_THAT(std::string(second.end_->message()), HasSubstr("launcher 3"));
  EXPECT_FALSE(third.end_.has_value());
  EXPECT_EQ(third.started_->workers(0).pid(), worker);
  // One that believes to be the same is another process.
  TestLauncher twin(loop_, Hello(3));
  Come(twin, "--resume-kept");
  ASSERT_TRUE(twin.Until([&] { return twin.end_.has_value(); }));
  EXPECT_TRUE(absl::IsAlreadyExists(*twin.end_)) << *twin.end_;
  EXPECT_FALSE(third.end_.has_value());
  third.End();
}

TEST_F(OutlivingTest, WhatTheAgentSaidIsSaidAgainBehindTheWelcome) {
  TestLauncher first(loop_, Hello(1));
  Come(first, "--keep");
  ASSERT_TRUE(first.Until([&] { return first.welcome_.has_value(); }));
  (void)first.Run("exit 7");
  ASSERT_TRUE(first.Until([&] { return first.finished_ && first.released_ > 0; }));
  first.Hang();
  for (const uint64_t generation : {2, 3}) {
    TestLauncher next(loop_, Hello(generation));
    Come(next, "--resume-kept");
    ASSERT_TRUE(next.Until([&] { return next.retold_ == 1 && next.released_ == 1; }));
    ASSERT_GE(next.said_.size(), 2u);
    EXPECT_TRUE(next.said_[0].has_welcome());
    EXPECT_TRUE(next.said_[1].has_released());
    EXPECT_EQ(next.exits_[0].exit_code(), 7);
    EXPECT_TRUE(next.finished_);
    if (generation == 3) next.SayGoodbye();
  }
}

TEST_F(OutlivingTest, WorkersEndWhenNoLauncherIsHeardForAsLongAsTheySay) {
  v1::Hello hello = Hello(1, 3'000);
  hello.set_lease_ms(1'000);
  TestLauncher first(loop_, hello);
  Come(first, "--keep");
  ASSERT_TRUE(first.Until([&] { return first.welcome_.has_value(); }));
  const uint32_t worker = first.Run("exec sleep 600");
  auto pidfd = os::OpenPidfd(static_cast<pid_t>(worker));
  ASSERT_TRUE(pidfd.ok());
  const TimePoint gone = Clock::now();
  first.Hang();
  ASSERT_TRUE(Gone(pidfd->get()));
  // It counts from the last beat that was heard, which may be older than `gone`.
  EXPECT_GE(Clock::now() - gone, std::chrono::milliseconds(2'000)) << "not the lease";
  // A late one learns how.
  hello.set_generation(2);
  TestLauncher late(loop_, hello);
  Come(late, "--resume-kept");
  ASSERT_TRUE(late.Until([&] { return late.finished_ && late.retold_ > 0 && late.released_ > 0; }));
  EXPECT_TRUE(late.exits_[0].told_to_stop());
  // Agent and shepherd count the same silence: whichever is first ends the workers.
  for (const std::string& failure : late.failures_) {
    EXPECT_THAT(failure, HasSubstr("no launcher of this job was heard for 3s"));
  }
  late.SayGoodbye();
}

TEST_F(OutlivingTest, BridgesThatComeAtOnceStartOneAgent) {
  std::vector<Bridge> bridges;
  for (int i = 0; i < 4; ++i) bridges.push_back(Begin("--keep"));
  for (const Bridge& bridge : bridges) AwaitReady(bridge);
  size_t serving = 0;
  const std::string log = Read(KeptDirectory() + "/agent.log");
  for (size_t at = 0; (at = log.find("serving on", at)) != std::string::npos; ++at) ++serving;
  EXPECT_EQ(serving, 1u) << log;
}

TEST_F(OutlivingTest, APrivateAgentEndsByItselfWhenNobodyHasBeenThere) {
  const pid_t agent = Start({"keep", "--idle", "2"});
  ASSERT_FALSE(pids_.empty());
  pids_.clear();
  // On a busy machine the launcher takes longer than that to come; and a bridge that finds no agent
  // starts another one.
  os::UniqueFd until_it_comes = DialKept();
  TestLauncher launcher(loop_, Hello(1));
  Come(launcher, "--keep");
  ASSERT_TRUE(launcher.Until([&] { return launcher.welcome_.has_value(); }));
  ASSERT_EQ(KeptPid(), agent);
  until_it_comes.Reset();
  (void)launcher.Until([] { return false; }, std::chrono::milliseconds(2500));
  EXPECT_EQ(waitpid(agent, nullptr, WNOHANG), 0) << "it has a session";
  launcher.SayGoodbye();
  launcher.Hang();
  const TimePoint left = Clock::now();
  auto pidfd = os::OpenPidfd(agent);
  ASSERT_TRUE(pidfd.ok());
  ASSERT_TRUE(Gone(pidfd->get()));
  // Its last look at who is there may be older than `left`.
  EXPECT_GE(Clock::now() - left, std::chrono::milliseconds(500)) << "not at once";
  int status = -1;
  EXPECT_EQ(waitpid(agent, &status, 0), agent);
  EXPECT_EQ(status, 0);
}

// A private agent serves its user alone; so this one is resident, and root's.
TEST_F(OutlivingTest, AStrangerTakesNoJobOver) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be somebody else";
  ASSERT_EQ(chmod(home_.c_str(), 0755), 0);
  const auto dial = [state = Serve()](uid_t uid) { return Dial(state, uid); };
  TestLauncher first(loop_, Hello(1));
  first.Greet(dial(0), false);
  ASSERT_TRUE(first.Until([&] { return first.welcome_.has_value(); }));
  const uint32_t worker = first.Run(kScript);
  TestLauncher stranger(loop_, Hello(9));
  stranger.Greet(dial(65534), true);
  ASSERT_TRUE(stranger.Until([&] { return stranger.end_.has_value(); }));
  EXPECT_TRUE(absl::IsNotFound(*stranger.end_)) << *stranger.end_;
  EXPECT_FALSE(stranger.opened_);
  EXPECT_FALSE(first.end_.has_value());
  EXPECT_TRUE(Runs(worker));
  TestLauncher second(loop_, Hello(2));
  second.Greet(dial(0), true);
  ASSERT_TRUE(second.Until([&] { return second.retold_ == 1 && second.welcome_; }))
      << "its generation was not taken";
  second.End();
}

// A spare, say, that was lost as the network was down, and is back before its lease is over.
TEST_F(OutlivingTest, WhatAnAttemptReservedThatNeverBeganIsTheNextOnesAtOnce) {
  const std::string state = Serve();
  v1::Hello hello = Hello(0);
  hello.set_lease_ms(600'000);
  v1::Reserve share;
  share.set_cpulist("0");
  TestLauncher first(loop_, hello);
  first.Greet(Dial(state, geteuid()), false);
  ASSERT_TRUE(first.Until([&] { return first.welcome_.has_value(); }));
  EXPECT_EQ(first.Reserve(share), "");
  first.Hang();
  // Of another job it is held.
  v1::Hello others = hello;
  others.set_job_id(hello.job_id() + "0");
  others.set_attempt(1);
  TestLauncher other(loop_, others);
  other.Greet(Dial(state, geteuid()), false);
  ASSERT_TRUE(other.Until([&] { return other.welcome_.has_value(); }));
  EXPECT_EQ(other.welcome_->inventory().held_cores_size(), 1);
  EXPECT_THAT(other.Reserve(share), HasSubstr(hello.job_id()));

  hello.set_attempt(1);
  TestLauncher next(loop_, hello);
  next.Greet(Dial(state, geteuid()), false);
  ASSERT_TRUE(next.Until([&] { return next.welcome_.has_value(); }));
  EXPECT_EQ(next.welcome_->inventory().held_cores_size(), 0);
  EXPECT_EQ(next.Reserve(share), "");
  // An earlier one that comes late ends nothing.
  hello.set_attempt(0);
  TestLauncher late(loop_, hello);
  late.Greet(Dial(state, geteuid()), false);
  ASSERT_TRUE(late.Until([&] { return late.welcome_.has_value(); }));
  EXPECT_THAT(late.Reserve(share), HasSubstr(hello.job_id()));
  for (TestLauncher* each : {&other, &next, &late}) each->SayGoodbye();
}

// An agent that is told to end waits for launches that have begun. Nothing begins on a spare.
TEST_F(OutlivingTest, AnAgentThatEndsGivesUpItsSparesAtOnceAndSaysSo) {
  const std::string state = Serve();
  const pid_t agent = pids_.back();
  pids_.pop_back();
  v1::Reserve share;
  share.set_cpulist("0");
  share.set_node_rank(kNoNodeRank);
  TestLauncher launcher(loop_, Hello(0));
  launcher.Greet(Dial(state, geteuid()), false);
  ASSERT_TRUE(launcher.Until([&] { return launcher.welcome_.has_value(); }));
  EXPECT_EQ(launcher.Reserve(share), "");
  ASSERT_EQ(kill(agent, SIGTERM), 0);
  ASSERT_TRUE(launcher.Until([&] { return launcher.end_.has_value(); }));
  EXPECT_EQ(*launcher.end_, absl::AbortedError("its agent was told to end"));
  int status = -1;
  EXPECT_EQ(waitpid(agent, &status, 0), agent);
  EXPECT_EQ(status, 0);
}

// Surveys are shown to nobody, so a job that says that it is one must not have anything.
TEST_F(OutlivingTest, AJobCannotHideAsASurvey) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, for an agent that serves others";
  const std::string state = Serve();
  v1::Hello hello = Hello(0);
  hello.mutable_elastic()->set_survey(true);
  TestLauncher launcher(loop_, hello);
  launcher.Greet(Dial(state, 0), false);
  ASSERT_TRUE(launcher.Until([&] { return launcher.welcome_.has_value(); }));
  EXPECT_EQ(launcher.Reserve(), "a survey reserves nothing");
  launcher.Start(kScript);
  ASSERT_TRUE(launcher.Until([&] { return !launcher.failures_.empty() || launcher.started_; }));
  EXPECT_FALSE(launcher.started_.has_value());
  EXPECT_THAT(launcher.failures_, testing::ElementsAre(HasSubstr("without having reserved")));
}

}  // namespace
}  // namespace dtrain::session
