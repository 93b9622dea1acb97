// SPDX-License-Identifier: Apache-2.0
#include "common/os/spawn.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/os/pidfd.h"
#include "common/os/scheduling.h"

// The child borrows our memory until it execs: no sanitizer may keep books there, nor may the
// compiler merge its frame with ours.
#if defined(__clang__)
#define DTRAIN_CHILD_CODE \
  __attribute__((noinline, no_sanitize("address", "thread", "undefined"), no_stack_protector))
#else
#define DTRAIN_CHILD_CODE                                                                  \
  __attribute__((noinline, no_sanitize_address, no_sanitize_thread, no_sanitize_undefined, \
                 no_stack_protector))
#endif

// ThreadSanitizer's own clone takes every child for a fork with memory of its own and resets its
// books there: in our memory. glibc's other name for the function is not intercepted.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DTRAIN_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(DTRAIN_TSAN)
extern "C" int __clone(int (*child)(void*), void* stack, int flags, void* argument, ...);
#define DTRAIN_CLONE __clone
#else
#define DTRAIN_CLONE clone
#endif

namespace dtrain::os {
namespace {

constexpr size_t kStackSize = 64 << 10;
constexpr int kSignals = 64;

// Everything the child needs, made before it exists: it can neither allocate nor lock.
struct ChildPlan {
  const char* path;
  char* const* argv;
  char* const* sh_argv;  // for a script without "#!", as execvp does it
  char* const* envp;
  const char* directory;  // null: stay
  bool new_session;
  bool as_usual;  // scheduled so, which we are not
  int death_signal;
  pid_t parent;
  int cgroup_fd;
  bool in_cgroup;  // from its first moment on
  const Account* user;
  const gid_t* groups;
  size_t group_count;
  const cpu_set_t* cpus;
  size_t cpus_size;
  const std::pair<int, rlimit>* limits;
  size_t limit_count;
  int* fds;            // in: descriptors of ours; the child turns them into its own duplicates
  const int* targets;  // ascending
  size_t fd_count;
  // The child's answer.
  volatile SpawnStage failed_stage = SpawnStage::kNone;
  volatile int failed_errno = 0;
};

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
  int next = 0;
  for (size_t i = 0; i < plan->fd_count; ++i) {
    int target = plan->targets[i];
    if (syscall(SYS_dup3, plan->fds[i], target, 0) < 0) {
      return Fail(plan, SpawnStage::kDescriptors);
    }
    if (target > next) syscall(SYS_close_range, next, target - 1, 0);
    next = target + 1;
  }
  if (syscall(SYS_close_range, next, ~0U, 0) != 0) Fail(plan, SpawnStage::kDescriptors);
}

DTRAIN_CHILD_CODE void ResetSignals() {
  KernelSigaction action = {};  // SIG_DFL
  for (int s = 1; s <= kSignals; ++s)
    syscall(SYS_rt_sigaction, s, &action, nullptr, sizeof(uint64_t));
}

// Raw calls: they change this process alone, where glibc's would tell the threads of our parent.
DTRAIN_CHILD_CODE void BecomeUser(ChildPlan* plan, uid_t uid, gid_t gid) {
  if (syscall(SYS_setgroups, plan->group_count, plan->groups) != 0 ||
      syscall(SYS_setresgid, gid, gid, gid) != 0 || syscall(SYS_setresuid, uid, uid, uid) != 0) {
    Fail(plan, SpawnStage::kUser);
  }
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

DTRAIN_CHILD_CODE int ChildMain(void* argument) {
  auto* plan = static_cast<ChildPlan*>(argument);
  ResetSignals();
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
  if (plan->cpus != nullptr &&
      syscall(SYS_sched_setaffinity, 0, plan->cpus_size, plan->cpus) != 0) {
    Fail(plan, SpawnStage::kAffinity);
  }
  if (plan->user != nullptr) {
    BecomeUser(plan, plan->user->uid, plan->user->gid);
    AskForDeathSignal(plan);  // a change of the user drops it
  }
  if (plan->directory != nullptr && syscall(SYS_chdir, plan->directory) != 0) {
    Fail(plan, SpawnStage::kWorkingDirectory);
  }
  PlaceDescriptors(plan);
  // After it: a low limit of open files would not let it go above the ones we have.
  for (size_t i = 0; i < plan->limit_count; ++i) {
    const auto& [resource, value] = plan->limits[i];
    if (syscall(SYS_prlimit64, 0, resource, &value, nullptr) != 0) Fail(plan, SpawnStage::kLimits);
  }
  uint64_t none = 0;
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, nullptr, sizeof(none));
  syscall(SYS_execve, plan->path, plan->argv, plan->envp);
  if (errno == ENOEXEC) syscall(SYS_execve, "/bin/sh", plan->sh_argv, plan->envp);
  Fail(plan, SpawnStage::kExec);
  return 127;
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (const std::string& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

absl::string_view EnvValue(const std::vector<std::string>& env, absl::string_view name,
                           absl::string_view otherwise) {
  for (const std::string& entry : env) {
    absl::string_view e = entry;
    if (e.size() > name.size() && e.substr(0, name.size()) == name && e[name.size()] == '=') {
      return e.substr(name.size() + 1);
    }
  }
  return otherwise;
}

std::string Joined(absl::string_view directory, absl::string_view file) {
  if (directory.empty() || (!file.empty() && file[0] == '/')) return std::string(file);
  return absl::StrCat(directory, directory.back() == '/' ? "" : "/", file);
}

// 0 when `path` is a file we may execute.
int CannotExecute(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return errno;
  if (S_ISDIR(info.st_mode)) return EISDIR;
  if (!S_ISREG(info.st_mode)) return EACCES;
  return faccessat(AT_FDCWD, path.c_str(), X_OK, AT_EACCESS) == 0 ? 0 : errno;
}

int CannotEnter(const std::string& directory) {
  struct stat info;
  if (stat(directory.c_str(), &info) != 0) return errno;
  return S_ISDIR(info.st_mode) ? 0 : ENOTDIR;
}

// `subject`: the program, or the working directory when it is about that.
absl::Status Explain(const SpawnError& error, absl::string_view subject) {
  int e = error.error_number;
  std::string shown = Escape(subject);
  switch (error.stage) {
    case SpawnStage::kWorkingDirectory:
      return PosixError(e, absl::StrCat("enter the working directory ", shown));
    case SpawnStage::kExec:
      if (e == ENOENT) {
        return PosixError(e, absl::StrCat("run ", shown,
                                          ": the interpreter its first line or its "
                                          "ELF header names"));
      }
      return PosixError(e, absl::StrCat("run ", shown));
    case SpawnStage::kFork:
      return PosixError(e, absl::StrCat("start a process for ", shown));
    case SpawnStage::kCgroup:
      return PosixError(e, "put a new process into its cgroup");
    case SpawnStage::kAffinity:
      return PosixError(e, "bind a new process to its cpus");
    case SpawnStage::kScheduling:
      return PosixError(e, "have a new process scheduled as usual");
    case SpawnStage::kUser:
      return PosixError(e, "make a new process another user's");
    case SpawnStage::kLimits:
      return PosixError(e, "set the resource limits of a new process");
    default:
      return PosixError(e, absl::StrCat("prepare a process for ", shown));
  }
}

// A child's stack, with a guard page below. A thread keeps it for its next child: there is only one
// at a time, as the parent waits until it execs.
class Stack {
 public:
  Stack() = default;
  ~Stack() {
    if (base_ != MAP_FAILED) munmap(base_, kStackSize);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  // False, with errno: there is no memory for it now.
  bool Make() {
    if (base_ != MAP_FAILED) return true;
    base_ = mmap(nullptr, kStackSize, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (base_ != MAP_FAILED) mprotect(base_, 4096, PROT_NONE);
    return base_ != MAP_FAILED;
  }
  void* base() const { return base_; }
  void* top() const { return static_cast<char*>(base_) + kStackSize; }

 private:
  void* base_ = MAP_FAILED;
};

// The descriptors of the child, by ascending target.
struct Descriptors {
  std::vector<int> fds;
  std::vector<int> targets;
};

Descriptors Order(const SpawnSpec& spec, int null_fd) {
  auto real = [&](int fd) { return fd >= 0 ? fd : null_fd; };
  std::vector<std::pair<int, int>> all = {
      {0, real(spec.stdin_fd)}, {1, real(spec.stdout_fd)}, {2, real(spec.stderr_fd)}};
  for (auto [fd, target] : spec.extra_fds) all.emplace_back(target, fd);
  std::sort(all.begin(), all.end());
  Descriptors out;
  for (auto [target, fd] : all) {
    out.targets.push_back(target);
    out.fds.push_back(fd);
  }
  return out;
}

struct CpuSet {
  explicit CpuSet(const std::vector<int>& cpus) {
    if (cpus.empty()) return;
    bits.resize(static_cast<size_t>(*std::max_element(cpus.begin(), cpus.end())) / 64 + 1);
    for (int cpu : cpus) bits[static_cast<size_t>(cpu) / 64] |= uint64_t{1} << (cpu % 64);
  }
  const cpu_set_t* get() const {
    return bits.empty() ? nullptr : reinterpret_cast<const cpu_set_t*>(bits.data());
  }
  std::vector<uint64_t> bits;
};

// A child that runs ChildMain in the plan's cgroup from its first moment on. -1: no such child, the
// kernel is too old for it (before Linux 5.7), the system does not allow the call, or the cgroup
// takes nobody. Moving a process that is there already stops all forks of the machine meanwhile,
// for which the kernel first waits until every core was seen elsewhere (RCU): 5 to 15 ms after a
// while without such moves, and 0.2 ms each.
DTRAIN_CHILD_CODE int CloneIntoCgroup(ChildPlan* plan, const Stack& stack, int* pidfd) {
#if defined(__x86_64__)
  clone_args args = {};
  args.flags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD | CLONE_INTO_CGROUP;
  args.pidfd = reinterpret_cast<uint64_t>(pidfd);
  args.exit_signal = SIGCHLD;
  args.stack = reinterpret_cast<uint64_t>(stack.base());
  args.stack_size = kStackSize;
  args.cgroup = static_cast<uint64_t>(plan->cgroup_fd);
  plan->in_cgroup = true;
  // glibc has no function for this call. The child returns from it on a stack of its own, where it
  // finds none of our frames: so it must not return to here.
  int64_t result = SYS_clone3;
  asm volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "mov %[plan], %%rdi\n\t"
      "call *%[child]\n\t"
      "ud2\n"
      "1:"
      : "+a"(result)
      : "D"(&args), "S"(sizeof(args)), [child] "r"(&ChildMain), [plan] "r"(plan)
      : "rcx", "r11", "cc", "memory");
  if (result >= 0) return static_cast<int>(result);
#else
  (void)stack;
  (void)pidfd;
#endif
  plan->in_cgroup = false;
  return -1;
}

// Runs the plan. Fills in `error` and returns an empty child when it failed.
Child Clone(ChildPlan* plan, SpawnError* error) {
  static thread_local Stack stack;
  int pidfd = -1;
  // A handler of ours must not run in the child: it would act on our memory.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  int pid = -1;
  const bool ready = stack.Make();
  if (ready && plan->cgroup_fd >= 0) pid = CloneIntoCgroup(plan, stack, &pidfd);
  if (ready && pid < 0) {
    pid = DTRAIN_CLONE(ChildMain, stack.top(), CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, plan,
                       &pidfd);
  }
  int clone_errno = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) {
    *error = {SpawnStage::kFork, clone_errno, ""};
    return {};
  }
  Child child{pid, UniqueFd(pidfd)};
  if (plan->failed_stage == SpawnStage::kNone) return child;
  *error = {plan->failed_stage, plan->failed_errno, ""};
  (void)WaitAndReap(child.pidfd.get());
  return {};
}

}  // namespace

absl::StatusOr<std::string> FindProgram(absl::string_view program, absl::string_view search_path,
                                        absl::string_view working_directory, SpawnError* error) {
  auto fail = [&](int e, std::string path, std::string what) {
    *error = {SpawnStage::kProgram, e, std::move(path)};
    return PosixError(e, what);
  };
  std::string shown = Escape(program);
  if (program.empty()) return fail(ENOENT, "", "run a program with an empty name");
  if (program.find('/') != absl::string_view::npos) {
    std::string path = Joined(working_directory, program);
    int e = CannotExecute(path);
    if (e != 0) return fail(e, path, absl::StrCat("run ", Escape(path)));
    return path;
  }
  int worst = ENOENT;
  std::string worst_path;
  for (absl::string_view directory : absl::StrSplit(search_path, ':')) {
    std::string path = Joined(Joined(working_directory, directory), program);
    int e = CannotExecute(path);
    if (e == 0) return path;
    // As execvp: a file that is there but cannot be run is worth telling, if nothing better comes.
    if ((e == EACCES || e == EISDIR) && worst == ENOENT) {
      worst = e;
      worst_path = path;
    }
  }
  if (worst == ENOENT) {
    return fail(worst, std::string(program),
                absl::StrCat("find ", shown, " in PATH (", Escape(search_path, 400), ")"));
  }
  return fail(worst, worst_path, absl::StrCat("run ", Escape(worst_path)));
}

absl::StatusOr<Child> Spawn(const SpawnSpec& spec, SpawnError* error) {
  SpawnError ignored;
  std::error_code ignored_code;
  if (error == nullptr) error = &ignored;
  *error = {};
  if (spec.argv.empty()) {
    *error = {SpawnStage::kProgram, EINVAL, ""};
    return absl::InvalidArgumentError("no program to run was given");
  }
  // Absolute, so that the same words mean the same file before and after the child's chdir.
  std::string directory = spec.working_directory;
  if (!directory.empty() && directory[0] != '/') {
    directory = Joined(std::filesystem::current_path(ignored_code).native(), directory);
  }
  // Told apart from a program that is missing: the directory comes first.
  if (int e = directory.empty() ? 0 : CannotEnter(directory); e != 0) {
    *error = {SpawnStage::kWorkingDirectory, e, directory};
    return Explain(*error, directory);
  }
  auto path = FindProgram(spec.argv[0], EnvValue(spec.env, "PATH", "/usr/local/bin:/usr/bin:/bin"),
                          directory, error);
  if (!path.ok()) return path.status();
  UniqueFd null_fd(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null_fd) {
    *error = {SpawnStage::kDescriptors, errno, "/dev/null"};
    return PosixError(errno, "open /dev/null");
  }
  std::vector<std::string> sh = {"/bin/sh", *path};
  sh.insert(sh.end(), spec.argv.begin() + 1, spec.argv.end());
  std::vector<char*> argv = Pointers(spec.argv), sh_argv = Pointers(sh), envp = Pointers(spec.env);
  Descriptors descriptors = Order(spec, null_fd.get());
  CpuSet cpus(spec.cpus);
  ChildPlan plan{path->c_str(),
                 argv.data(),
                 sh_argv.data(),
                 envp.data(),
                 directory.empty() ? nullptr : directory.c_str(),
                 spec.new_session,
                 InterruptsNobody(),
                 spec.parent_death_signal,
                 getpid(),
                 spec.cgroup_fd,
                 /*in_cgroup=*/false,
                 spec.user,
                 spec.user != nullptr ? spec.user->groups.data() : nullptr,
                 spec.user != nullptr ? spec.user->groups.size() : 0,
                 cpus.get(),
                 cpus.bits.size() * 8,
                 spec.limits.data(),
                 spec.limits.size(),
                 descriptors.fds.data(),
                 descriptors.targets.data(),
                 descriptors.fds.size()};
  Child child = Clone(&plan, error);
  if (error->stage == SpawnStage::kNone) return child;
  error->path = error->stage == SpawnStage::kWorkingDirectory ? directory : *path;
  return Explain(*error, error->path);
}

}  // namespace dtrain::os
