// SPDX-License-Identifier: Apache-2.0
#include "common/os/spawn.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <string>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/os/fd.h"
#include "common/os/find_program.h"
#include "common/os/pidfd.h"
#include "common/os/scheduling.h"

namespace dtrain::os {
namespace {

using ::testing::HasSubstr;

struct Output {
  std::string text;
  ExitStatus status;
};

class SpawnTest : public ::testing::Test {
 protected:
  SpawnTest() {
    char name[] = "/tmp/dtrain-spawn-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~SpawnTest() override { (void)!system(absl::StrCat("rm -rf ", directory_).c_str()); }

  SpawnSpec Spec(std::vector<std::string> argv) {
    SpawnSpec spec;
    spec.argv = std::move(argv);
    spec.env = {"PATH=/usr/bin:/bin"};
    return spec;
  }

  // Runs it with stdout and stderr in one pipe until both end.
  Output Run(SpawnSpec spec) {
    auto pipe = Pipe();
    EXPECT_TRUE(pipe.ok());
    spec.stdout_fd = spec.stderr_fd = pipe->second.get();
    auto child = Spawn(spec);
    EXPECT_TRUE(child.ok()) << child.status();
    if (!child.ok()) return {};
    pipe->second.Reset();
    Output out;
    char buffer[4096];
    ssize_t n;
    while ((n = read(pipe->first.get(), buffer, sizeof(buffer))) > 0) {
      out.text.append(buffer, static_cast<size_t>(n));
    }
    out.status = *WaitAndReap(child->pidfd.get());
    return out;
  }

  SpawnError Failure(const SpawnSpec& spec, std::string* message = nullptr) {
    SpawnError error;
    auto child = Spawn(spec, &error);
    EXPECT_FALSE(child.ok());
    if (message != nullptr) *message = std::string(child.status().message());
    EXPECT_EQ(EndedChild(), 0) << "a failed child was left unreaped";
    return error;
  }

  std::string File(const std::string& name, const std::string& text, int mode) {
    std::string path = directory_ + "/" + name;
    std::ofstream(path) << text;
    chmod(path.c_str(), static_cast<mode_t>(mode));
    return path;
  }

  std::string directory_;
};

TEST_F(SpawnTest, RunsAProgramFoundInTheChildsPath) {
  File("tool", "#!/bin/sh\necho found $0 $1\n", 0755);
  SpawnSpec spec = Spec({"tool", "with space"});
  spec.env = {absl::StrCat("PATH=/nonexistent:", directory_)};
  Output out = Run(spec);
  EXPECT_EQ(out.text, absl::StrCat("found ", directory_, "/tool with space\n"));
  EXPECT_EQ(out.status.code, 0);
}

TEST_F(SpawnTest, ReportsExitCodeAndSignal) {
  EXPECT_EQ(Run(Spec({"sh", "-c", "exit 7"})).status.code, 7);
  ExitStatus killed = Run(Spec({"sh", "-c", "kill -SEGV $$"})).status;
  EXPECT_EQ(killed.signal, SIGSEGV);
}

// B6
TEST_F(SpawnTest, ArgumentsAndEnvironmentArriveByteExact) {
  SpawnSpec spec = Spec({"sh", "-c", "printf '%s|' \"$@\"; printf '%s' \"$V\"", "x", "a b", "$HOME",
                         "`id`", "new\nline", "", "\"'\\"});
  spec.env.push_back("V=line1\nline2=\xff");
  EXPECT_EQ(Run(spec).text, "a b|$HOME|`id`|new\nline||\"'\\|line1\nline2=\xff");
}

TEST_F(SpawnTest, RelativeProgramsAreFoundFromTheWorkingDirectory) {
  File("here", "#!/bin/sh\npwd\n", 0755);
  SpawnSpec spec = Spec({"./here"});
  spec.working_directory = directory_;
  EXPECT_EQ(Run(spec).text, directory_ + "\n");
  spec.argv = {"here"};
  spec.env = {"PATH=:/usr/bin:/bin"};
  EXPECT_EQ(Run(spec).text, directory_ + "\n");
}

TEST_F(SpawnTest, RunsAScriptWithoutAFirstLineAsAShellScript) {
  SpawnSpec spec = Spec({File("script", "echo shell $1\n", 0755), "arg"});
  EXPECT_EQ(Run(spec).text, "shell arg\n");
}

// A14
TEST_F(SpawnTest, TellsMissingFromDirectoryFromNotExecutable) {
  std::string message;
  SpawnError error = Failure(Spec({"no-such-program"}), &message);
  EXPECT_EQ(error.stage, SpawnStage::kProgram);
  EXPECT_EQ(error.error_number, ENOENT);
  EXPECT_THAT(message, HasSubstr("no-such-program in PATH (/usr/bin:/bin)"));

  EXPECT_EQ(Failure(Spec({directory_})).error_number, EISDIR);
  std::string plain = File("plain", "text", 0644);
  error = Failure(Spec({plain}), &message);
  EXPECT_EQ(error.error_number, EACCES);
  EXPECT_EQ(error.path, plain);
  EXPECT_THAT(message, HasSubstr(plain));
}

// Folders of root's are in PATH after `su bob` and the like.
TEST_F(SpawnTest, APrivateFolderOfAnotherUserInPathHoldsNoProgram) {
  const std::string closed = directory_ + "/closed";
  ASSERT_EQ(mkdir(closed.c_str(), 0700), 0);
  ASSERT_EQ(chmod(closed.c_str(), 0), 0);
  std::string said;
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) _exit(2);
    SpawnError error;
    const auto found = FindProgram("no-such-program", closed + ":/usr/bin", "", &error);
    const bool told = absl::EndsWith(found.status().message(),
                                     "look into " + closed + ": No such file or directory");
    const bool others = FindProgram("true", closed + ":/usr/bin", "", &error).ok();
    _exit(error.error_number == ENOENT && told && others ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// A13
TEST_F(SpawnTest, NamesAMissingWorkingDirectory) {
  SpawnSpec spec = Spec({"true"});
  spec.working_directory = directory_ + "/missing";
  std::string message;
  SpawnError error = Failure(spec, &message);
  EXPECT_EQ(error.stage, SpawnStage::kWorkingDirectory);
  EXPECT_EQ(error.error_number, ENOENT);
  EXPECT_THAT(message, HasSubstr(directory_ + "/missing"));
}

// D17
TEST_F(SpawnTest, NamesErrnoAndPathOfAFailedExec) {
  std::string message;
  std::string script = File("bad", "#!/no/such/interpreter\n", 0755);
  SpawnError error = Failure(Spec({script}), &message);
  EXPECT_EQ(error.stage, SpawnStage::kExec);
  EXPECT_EQ(error.error_number, ENOENT);
  EXPECT_THAT(message, HasSubstr("interpreter"));
  EXPECT_THAT(message, HasSubstr(script));

  SpawnSpec big = Spec({"/bin/true"});
  big.env.push_back("BIG=" + std::string(1 << 20, 'x'));
  EXPECT_EQ(Failure(big).error_number, E2BIG);

  std::string busy = directory_ + "/busy";
  ASSERT_EQ(system(absl::StrCat("cp /bin/true ", busy).c_str()), 0);
  UniqueFd writer(open(busy.c_str(), O_WRONLY | O_CLOEXEC));
  error = Failure(Spec({busy}));
  EXPECT_EQ(error.error_number, ETXTBSY);
  EXPECT_EQ(error.path, busy);

  ASSERT_EQ(symlink("loop", (directory_ + "/loop").c_str()), 0);
  EXPECT_EQ(Failure(Spec({directory_ + "/loop"})).error_number, ELOOP);
}

// D9
TEST_F(SpawnTest, OnlyTheListedDescriptorsAreOpenInTheChild) {
  UniqueFd leaked(open("/dev/null", O_RDONLY));  // not close-on-exec
  auto pair = SocketPair();
  SpawnSpec spec = Spec({"sh", "-c", "ls -m /proc/$$/fd; exit 0"});
  EXPECT_EQ(Run(spec).text, "0, 1, 2\n");
  spec.extra_fds = {{pair->first.get(), 9}};
  EXPECT_EQ(Run(spec).text, "0, 1, 2, 9\n");
}

// D9
TEST_F(SpawnTest, DescriptorsMayTradePlaces) {
  auto pipe = Pipe();
  // The child's 3 is our 1's number upside down: sources and targets overlap.
  SpawnSpec spec = Spec({"sh", "-c", "echo three >&3"});
  int fd = pipe->second.get();
  UniqueFd low(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  spec.extra_fds = {{low.get(), 3}, {fd, low.get() == 4 ? 5 : 4}};
  EXPECT_EQ(Run(spec).status.code, 0);
  char buffer[16] = {};
  EXPECT_EQ(read(pipe->first.get(), buffer, sizeof(buffer)), 6);
  EXPECT_STREQ(buffer, "three\n");
}

// D9
TEST_F(SpawnTest, SignalsAreDefaultAndNoneIsBlocked) {
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  auto old = signal(SIGPIPE, SIG_IGN);
  auto old_realtime = signal(SIGRTMAX, SIG_IGN);
  Output out = Run(Spec({"grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"}));
  signal(SIGPIPE, old);
  signal(SIGRTMAX, old_realtime);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(out.text, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST_F(SpawnTest, TheChildLeadsAGroupOrASession) {
  // Fields 1, 5, 6 of stat: pid, process group, session.
  SpawnSpec spec = Spec({"sh", "-c", "set -- $(cat /proc/$$/stat); echo $1 $5 $6"});
  std::string text = Run(spec).text;
  int pid = 0, group = 0, session = 0;
  ASSERT_EQ(sscanf(text.c_str(), "%d %d %d", &pid, &group, &session), 3);
  EXPECT_EQ(group, pid);
  EXPECT_EQ(session, getsid(0));
  spec.new_session = true;
  text = Run(spec).text;
  ASSERT_EQ(sscanf(text.c_str(), "%d %d %d", &pid, &group, &session), 3);
  EXPECT_EQ(session, pid);
}

TEST_F(SpawnTest, LimitsAndAffinityHold) {
  SpawnSpec spec =
      Spec({"sh", "-c", "ulimit -c; ulimit -n; grep ^Cpus_allowed_list /proc/self/status"});
  spec.limits = {{RLIMIT_CORE, {0, 0}}, {RLIMIT_NOFILE, {77, 77}}};
  cpu_set_t own;
  ASSERT_EQ(sched_getaffinity(0, sizeof(own), &own), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &own)) ++cpu;
  spec.cpus = {cpu};
  EXPECT_EQ(Run(spec).text, absl::StrCat("0\n77\nCpus_allowed_list:\t", cpu, "\n"));
  spec.cpus = {4095};
  EXPECT_EQ(Failure(spec).stage, SpawnStage::kAffinity);
}

TEST_F(SpawnTest, WhatItStartsIsScheduledAsWeWere) {
  SpawnSpec spec = Spec({"chrt", "-p", "0"});
  // Who has chosen a policy for all that we start keeps it. In a child: it does not come back.
  for (const auto& [chosen, ours, theirs] : {std::tuple(SCHED_OTHER, SCHED_BATCH, "SCHED_OTHER"),
                                             std::tuple(SCHED_BATCH, SCHED_BATCH, "SCHED_BATCH"),
                                             std::tuple(SCHED_IDLE, SCHED_IDLE, "SCHED_IDLE")}) {
    const pid_t child = fork();
    if (child == 0) {
      const sched_param none = {};
      sched_setscheduler(0, chosen, &none);
      InterruptNobody();
      const bool right = sched_getscheduler(0) == ours && absl::StrContains(Run(spec).text, theirs);
      _exit(right ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << chosen;
  }
}

TEST_F(SpawnTest, TheChildDiesWithItsParent) {
  auto pipe = Pipe();
  pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    SpawnSpec spec = Spec({"sh", "-c", "echo up; exec sleep 600"});
    spec.parent_death_signal = SIGKILL;
    spec.stdout_fd = pipe->second.get();
    _exit(Spawn(spec).ok() ? (pause(), 0) : 1);
  }
  pipe->second.Reset();
  char buffer[8];
  ASSERT_EQ(read(pipe->first.get(), buffer, sizeof(buffer)), 3);
  auto pidfd = OpenPidfd(parent);
  ASSERT_TRUE(SendSignal(pidfd->get(), SIGKILL).ok());
  ASSERT_EQ(WaitAndReap(pidfd->get())->signal, SIGKILL);
  pollfd p{pipe->first.get(), POLLIN, 0};
  ASSERT_EQ(TEMP_FAILURE_RETRY(poll(&p, 1, 10000)), 1);
  EXPECT_EQ(read(pipe->first.get(), buffer, sizeof(buffer)), 0);  // the last writer is gone
}

// D10
TEST_F(SpawnTest, AReapedChildCannotBeSignalled) {
  auto child = Spawn(Spec({"true"}));
  ASSERT_TRUE(child.ok());
  ASSERT_TRUE(WaitAndReap(child->pidfd.get()).ok());
  EXPECT_TRUE(absl::IsNotFound(SendSignal(child->pidfd.get(), SIGKILL)));
}

TEST_F(SpawnTest, TheChildHasTheUmaskAndTheNiceOfItsSpec) {
  SpawnSpec spec = Spec({"/bin/sh", "-c", "umask; nice"});
  const int ours = getpriority(PRIO_PROCESS, 0);
  spec.umask = 0027;
  spec.nice = std::min(ours + 3, 19);
  EXPECT_EQ(Run(spec).text, absl::StrCat("0027\n", *spec.nice, "\n"));
}

}  // namespace
}  // namespace dtrain::os
