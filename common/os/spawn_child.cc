// SPDX-License-Identifier: Apache-2.0
#include "common/os/spawn_child.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "common/os/fd.h"

namespace dtrain::os {
namespace {

constexpr int kSignals = 64;
constexpr int kUserUmask = 022;  // a login's

// The kernel's, which has no room for glibc's reserved signals to hide.
struct KernelSigaction {
  void (*handler)(int);
  unsigned long flags;
  void (*restorer)();
  uint64_t mask;
};

DTRAIN_CHILD_CODE void Fail(ChildPlan* plan, SpawnStage stage) {
  plan->failed_errno = errno;
  plan->failed_stage = stage;
  if (plan->report_fd >= 0) {
    const ChildAnswer answer{stage, plan->failed_errno};
    // Nobody else is left to tell when this fails.
    (void)!syscall(SYS_write, plan->report_fd, &answer, sizeof(answer));
  }
  syscall(SYS_exit_group, 127);
}

// Sources go above all targets first, so that no dup2 hits one that is still needed.
DTRAIN_CHILD_CODE void PlaceDescriptors(ChildPlan* plan) {
  int above = plan->targets[plan->fd_count - 1] + 1;
  for (size_t i = 0; i < plan->fd_count; ++i) {
    long fd = syscall(SYS_fcntl, plan->fds[i], F_DUPFD_CLOEXEC, above);
    if (fd < 0) return Fail(plan, SpawnStage::kDescriptors);
    plan->fds[i] = static_cast<int>(fd);
  }
  if (plan->report_fd >= 0) plan->report_fd = plan->fds[plan->fd_count - 1];
  int next = 0;
  for (size_t i = 0; i < plan->fd_count; ++i) {
    int target = plan->targets[i];
    const bool report = plan->report_fd >= 0 && i + 1 == plan->fd_count;
    if (syscall(SYS_dup3, plan->fds[i], target, report ? O_CLOEXEC : 0) < 0) {
      return Fail(plan, SpawnStage::kDescriptors);
    }
    if (target > next) CloseRange(static_cast<unsigned>(next), static_cast<unsigned>(target - 1));
    next = target + 1;
  }
  CloseRange(static_cast<unsigned>(next), kEveryDescriptor);
  if (plan->report_fd >= 0) plan->report_fd = plan->targets[plan->fd_count - 1];
}

DTRAIN_CHILD_CODE void ResetSignals() {
  KernelSigaction action = {};  // SIG_DFL
  for (int s = 1; s <= kSignals; ++s)
    syscall(SYS_rt_sigaction, s, &action, nullptr, sizeof(uint64_t));
}

// Another one's memory is not for that user to read, nor are its descriptors to take, before the
// exec has put its own in their place.
DTRAIN_CHILD_CODE void HideFromUser(ChildPlan* plan) {
  if (syscall(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) Fail(plan, SpawnStage::kUser);
}

// With a session keyring of ours it could use our keys, and find those of other jobs.
DTRAIN_CHILD_CODE void JoinOwnKeyring(ChildPlan* plan) {
  if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr, 0, 0, 0) >= 0) return;
  // A kernel without keys, or a filter of system calls: the filter holds for that user as well.
  if (errno != ENOSYS && errno != EPERM) Fail(plan, SpawnStage::kKeyring);
}

DTRAIN_CHILD_CODE void DropCapabilities(ChildPlan* plan) {
  __user_cap_header_struct header = {};
  header.version = _LINUX_CAPABILITY_VERSION_3;
  const __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capset, &header, none) != 0 ||
      syscall(SYS_prctl, PR_SET_KEEPCAPS, 0, 0, 0, 0) != 0) {
    Fail(plan, SpawnStage::kUser);
  }
}

// Raw calls: they change this process alone, where glibc's would tell the threads of our parent.
DTRAIN_CHILD_CODE void BecomeUser(ChildPlan* plan, uid_t uid, gid_t gid) {
  HideFromUser(plan);
  // With fs.suid_dumpable=1 the change of user makes it that user's to look into. Not while it may
  // do more than that user.
  if (uid != 0 && syscall(SYS_prctl, PR_SET_KEEPCAPS, 1, 0, 0, 0) != 0) {
    Fail(plan, SpawnStage::kUser);
  }
  syscall(SYS_umask, kUserUmask);
  if (syscall(SYS_setgroups, plan->group_count, plan->groups) != 0 ||
      syscall(SYS_setresgid, gid, gid, gid) != 0 || syscall(SYS_setresuid, uid, uid, uid) != 0) {
    Fail(plan, SpawnStage::kUser);
  }
  HideFromUser(plan);  // the change made it what fs.suid_dumpable says
  if (uid != 0) DropCapabilities(plan);
  JoinOwnKeyring(plan);
  if (uid != 0 && syscall(SYS_setresuid, 0, 0, 0) == 0) {
    errno = EPERM;  // it could get back what it gave up
    Fail(plan, SpawnStage::kUser);
  }
  if (syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) Fail(plan, SpawnStage::kUser);
}

DTRAIN_CHILD_CODE void AskForDeathSignal(ChildPlan* plan) {
  if (plan->death_signal == 0) return;
  if (syscall(SYS_prctl, PR_SET_PDEATHSIG, plan->death_signal, 0, 0, 0) != 0) {
    Fail(plan, SpawnStage::kDeathSignal);
  }
  // The parent may have died before the request was made.
  if (syscall(SYS_getppid) != plan->parent) syscall(SYS_exit_group, 127);
}

DTRAIN_CHILD_CODE void JoinCgroup(ChildPlan* plan) {
  const long procs = syscall(SYS_openat, plan->cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
  if (procs < 0 || syscall(SYS_write, procs, "0", 1) != 1) Fail(plan, SpawnStage::kCgroup);
}

// All but the signals and the program.
DTRAIN_CHILD_CODE void PrepareChild(ChildPlan* plan) {
  AskForDeathSignal(plan);
  if (plan->new_session ? syscall(SYS_setsid) < 0 : syscall(SYS_setpgid, 0, 0) != 0) {
    Fail(plan, SpawnStage::kGroup);
  }
  if (plan->cgroup_fd >= 0 && !plan->in_cgroup) JoinCgroup(plan);
  if (plan->as_usual) {
    const sched_param none = {};
    if (syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &none) != 0) {
      Fail(plan, SpawnStage::kScheduling);
    }
  }
  // One that is not allowed is no reason to start nothing.
  if (plan->set_nice) syscall(SYS_setpriority, PRIO_PROCESS, 0, plan->nice);
  if (plan->umask >= 0) syscall(SYS_umask, plan->umask);
  if (plan->cpus != nullptr &&
      syscall(SYS_sched_setaffinity, 0, plan->cpus_size, plan->cpus) != 0) {
    Fail(plan, SpawnStage::kAffinity);
  }
  if (plan->user != nullptr) {
    PlaceDescriptors(plan);  // and close all others, before they are that user's
    BecomeUser(plan, plan->user->uid, plan->user->gid);
    AskForDeathSignal(plan);  // a change of the user drops it
  }
  if (plan->directory != nullptr && syscall(SYS_chdir, plan->directory) != 0) {
    Fail(plan, SpawnStage::kWorkingDirectory);
  }
  if (plan->user == nullptr) PlaceDescriptors(plan);
  // After it: a low limit of open files would not let it go above the ones we have.
  for (size_t i = 0; i < plan->limit_count; ++i) {
    const auto& [resource, value] = plan->limits[i];
    if (syscall(SYS_prlimit64, 0, resource, &value, nullptr) != 0) Fail(plan, SpawnStage::kLimits);
  }
}

}  // namespace

DTRAIN_CHILD_CODE int RunChild(void* argument) {
  auto* plan = static_cast<ChildPlan*>(argument);
  ResetSignals();
  PrepareChild(plan);
  uint64_t none = 0;
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, nullptr, sizeof(none));
  syscall(SYS_execve, plan->path, plan->argv, plan->envp);
  if (errno == ENOEXEC) syscall(SYS_execve, "/bin/sh", plan->sh_argv, plan->envp);
  Fail(plan, SpawnStage::kExec);
  return 127;
}

}  // namespace dtrain::os
