// SPDX-License-Identifier: Apache-2.0
#include "common/os/spawn.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "common/base/posix_error.h"
#include "common/os/find_program.h"
#include "common/os/pidfd.h"
#include "common/os/scheduling.h"
#include "common/os/spawn_child.h"

// ThreadSanitizer's own clone takes every child for a fork with memory of its own and resets its
// books there: in our memory. glibc's other name for the function is not intercepted.
#if defined(DTRAIN_TSAN)
extern "C" int __clone(int (*child)(void*), void* stack, int flags, void* argument, ...);
#define DTRAIN_CLONE __clone
#else
#define DTRAIN_CLONE clone
#endif

namespace dtrain::os {
namespace {

constexpr size_t kStackSize = 64 << 10;

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

int CannotEnter(const std::string& directory) {
  struct stat info;
  if (stat(directory.c_str(), &info) != 0) return errno;
  return S_ISDIR(info.st_mode) ? 0 : ENOTDIR;
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

// A child that runs RunChild in the plan's cgroup from its first moment on. -1: no such child, the
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
      : "D"(&args), "S"(sizeof(args)), [child] "r"(&RunChild), [plan] "r"(plan)
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
    pid = DTRAIN_CLONE(RunChild, stack.top(), CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, plan,
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
                 descriptors.fds.size(),
                 /*answer_fd=*/-1};
  Child child = Clone(&plan, error);
  if (error->stage == SpawnStage::kNone) return child;
  error->path = error->stage == SpawnStage::kWorkingDirectory ? directory : *path;
  return Explain(*error, error->path);
}

}  // namespace dtrain::os
