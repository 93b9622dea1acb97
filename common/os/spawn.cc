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
#include <optional>
#include <system_error>

#include "common/base/check.h"
#include "common/base/posix_error.h"
#include "common/os/fd.h"
#include "common/os/find_program.h"
#include "common/os/pidfd.h"
#include "common/os/pidfd_stand_in.h"
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
#if defined(__x86_64__) || defined(__aarch64__)
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
#if defined(__x86_64__)
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
#else
  register int64_t number asm("x8") = SYS_clone3;
  register int64_t result asm("x0") = reinterpret_cast<int64_t>(&args);
  register size_t size asm("x1") = sizeof(args);
  asm volatile(
      "svc #0\n\t"
      "cbnz x0, 1f\n\t"
      "mov x0, %[plan]\n\t"
      "blr %[child]\n\t"
      "brk #1000\n"
      "1:"
      : "+r"(result)
      : "r"(number), "r"(size), [child] "r"(&RunChild), [plan] "r"(plan)
      : "cc", "memory");
#endif
  if (result >= 0) return static_cast<int>(result);
#else
  (void)stack;
  (void)pidfd;
#endif
  plan->in_cgroup = false;
  return -1;
}

// The pidfd, or what takes its place.
UniqueFd Named(pid_t pid, int pidfd, std::pair<UniqueFd, UniqueFd> stand_in) {
  return stand_in.first ? StandInForChild(pid, std::move(stand_in)) : UniqueFd(pidfd);
}

// Runs the plan. Fills in `error` and returns an empty child when it failed.
Child Clone(ChildPlan* plan, std::pair<UniqueFd, UniqueFd> stand_in, SpawnError* error) {
  static thread_local Stack stack;
  int pidfd = -1;
  // A handler of ours must not run in the child: it would act on our memory.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  int pid = -1;
  const bool ready = stack.Make();
  const int wanted = stand_in.first ? 0 : CLONE_PIDFD;
  if (ready && wanted != 0 && plan->cgroup_fd >= 0) pid = CloneIntoCgroup(plan, stack, &pidfd);
  if (ready && pid < 0) {
    pid = DTRAIN_CLONE(RunChild, stack.top(), CLONE_VM | CLONE_VFORK | wanted | SIGCHLD, plan,
                       &pidfd);
  }
  int clone_errno = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) {
    *error = {SpawnStage::kFork, clone_errno, ""};
    return {};
  }
  Child child{pid, Named(pid, pidfd, std::move(stand_in))};
  if (plan->failed_stage == SpawnStage::kNone) return child;
  *error = {plan->failed_stage, plan->failed_errno, ""};
  (void)WaitAndReap(child.pidfd.get());
  return {};
}

// The same for a child with memory of its own, which nobody waits for. Signals are blocked in it
// until it has reset them.
DTRAIN_CHILD_CODE int Fork(ChildPlan* plan, unsigned long wanted, int* pidfd) {
  long pid = -1;
  if (wanted != 0 && plan->cgroup_fd >= 0) {
    clone_args args = {};
    args.flags = CLONE_PIDFD | CLONE_INTO_CGROUP;
    args.pidfd = reinterpret_cast<uint64_t>(pidfd);
    args.exit_signal = SIGCHLD;
    args.cgroup = static_cast<uint64_t>(plan->cgroup_fd);
    plan->in_cgroup = true;
    pid = syscall(SYS_clone3, &args, sizeof(args));
    if (pid < 0) plan->in_cgroup = false;
  }
  // Not glibc's: handlers of gRPC's would run in the child.
  if (pid < 0) pid = syscall(SYS_clone, wanted | SIGCHLD, nullptr, pidfd, nullptr, nullptr);
  if (pid == 0) RunChild(plan);  // does not return
  return static_cast<int>(pid);
}

// Moves a child that was not made in its cgroup, as it does itself a moment later: so a cgroup that
// was removed meanwhile is reported at once on every kernel, and the caller can make it again. An
// errno, or 0.
int MoveIntoCgroup(const ChildPlan& plan, pid_t pid) {
  if (plan.cgroup_fd < 0 || plan.in_cgroup) return 0;
  const UniqueFd procs(openat(plan.cgroup_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC));
  const std::string number = std::to_string(pid);
  if (procs && write(procs.get(), number.data(), number.size()) > 0) return 0;
  return errno == ESRCH ? 0 : errno;  // it has ended, and its report tells why
}

// All that a child's plan points to.
struct Prepared {
  std::string directory;
  std::string path;
  UniqueFd null_fd;
  std::pair<UniqueFd, UniqueFd> stand_in;  // empty where the kernel has pidfds
  std::vector<std::string> sh;
  std::vector<char*> argv, sh_argv, envp;
  Descriptors descriptors;
  std::optional<CpuSet> cpus;
  ChildPlan plan = {};
};

absl::Status Prepare(const SpawnSpec& spec, int report_fd, SpawnError* error, Prepared* out) {
  std::error_code ignored_code;
  *error = {};
  if (spec.argv.empty()) {
    *error = {SpawnStage::kProgram, EINVAL, ""};
    return absl::InvalidArgumentError("no program to run was given");
  }
  // Absolute, so that the same words mean the same file before and after the child's chdir.
  std::string& directory = out->directory;
  directory = spec.working_directory;
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
  out->path = *std::move(path);
  out->null_fd.Reset(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!out->null_fd) {
    *error = {SpawnStage::kDescriptors, errno, "/dev/null"};
    return PosixError(errno, "open /dev/null");
  }
  if (!HasPidfds()) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      *error = {SpawnStage::kDescriptors, errno, ""};
      return PosixError(errno, "make a pipe");
    }
    out->stand_in = {UniqueFd(ends[0]), UniqueFd(ends[1])};
  }
  out->sh = {"/bin/sh", out->path};
  out->sh.insert(out->sh.end(), spec.argv.begin() + 1, spec.argv.end());
  out->argv = Pointers(spec.argv);
  out->sh_argv = Pointers(out->sh);
  out->envp = Pointers(spec.env);
  out->descriptors = Order(spec, out->null_fd.get());
  if (report_fd >= 0) {
    out->descriptors.targets.push_back(out->descriptors.targets.back() + 1);
    out->descriptors.fds.push_back(report_fd);
  }
  out->cpus.emplace(spec.cpus);
  ChildPlan& plan = out->plan;
  plan.path = out->path.c_str();
  plan.argv = out->argv.data();
  plan.sh_argv = out->sh_argv.data();
  plan.envp = out->envp.data();
  plan.directory = directory.empty() ? nullptr : directory.c_str();
  plan.new_session = spec.new_session;
  plan.as_usual = InterruptsNobody();
  plan.death_signal = spec.parent_death_signal;
  plan.parent = getpid();
  plan.cgroup_fd = spec.cgroup_fd;
  plan.user = spec.user;
  if (spec.user != nullptr) {
    plan.groups = spec.user->groups.data();
    plan.group_count = spec.user->groups.size();
  }
  plan.cpus = out->cpus->get();
  plan.cpus_size = out->cpus->bits.size() * 8;
  plan.limits = spec.limits.data();
  plan.limit_count = spec.limits.size();
  plan.umask = spec.umask ? static_cast<int>(*spec.umask) : -1;
  plan.set_nice = spec.nice.has_value();
  plan.nice = spec.nice.value_or(0);
  plan.fds = out->descriptors.fds.data();
  plan.targets = out->descriptors.targets.data();
  plan.fd_count = out->descriptors.fds.size();
  plan.report_fd = report_fd;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Child> Spawn(const SpawnSpec& spec, SpawnError* error) {
  DTRAIN_CHECK(spec.user == nullptr);  // who could hold us up: SpawnAs
  SpawnError ignored;
  if (error == nullptr) error = &ignored;
  Prepared prepared;
  absl::Status ready = Prepare(spec, /*report_fd=*/-1, error, &prepared);
  if (!ready.ok()) return ready;
  Child child = Clone(&prepared.plan, std::move(prepared.stand_in), error);
  if (error->stage == SpawnStage::kNone) return child;
  error->path = error->stage == SpawnStage::kWorkingDirectory ? prepared.directory : prepared.path;
  return Explain(*error, error->path);
}

absl::StatusOr<PendingChild> SpawnAs(const SpawnSpec& spec) {
  auto report = Pipe();
  if (!report.ok()) return report.status();
  if (absl::Status set = SetNonBlocking(report->first.get(), true); !set.ok()) return set;
  // A cgroup that somebody has removed: told before there is a child.
  if (spec.cgroup_fd >= 0 && faccessat(spec.cgroup_fd, "cgroup.procs", F_OK, 0) != 0) {
    return Explain({SpawnStage::kCgroup, errno, ""}, "");
  }
  SpawnError error;
  Prepared prepared;
  absl::Status ready = Prepare(spec, report->second.get(), &error, &prepared);
  if (!ready.ok()) return ready;
  int pidfd = -1;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  const int pid = Fork(&prepared.plan, prepared.stand_in.first ? 0 : CLONE_PIDFD, &pidfd);
  const int fork_errno = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return Explain({SpawnStage::kFork, fork_errno, ""}, prepared.path);
  PendingChild pending;
  pending.child = {pid, Named(pid, pidfd, std::move(prepared.stand_in))};
  if (const int why = MoveIntoCgroup(prepared.plan, pid); why != 0) {
    (void)SendSignal(pending.child.pidfd.get(), SIGKILL);
    (void)WaitAndReap(pending.child.pidfd.get());
    return Explain({SpawnStage::kCgroup, why, ""}, "");
  }
  pending.report = std::move(report->first);
  pending.program = prepared.path;
  pending.directory = prepared.directory;
  return pending;
}

std::optional<absl::Status> PendingChild::Report() const {
  ChildAnswer answer;
  ssize_t n;
  do {
    n = read(report.get(), &answer, sizeof(answer));
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return std::nullopt;
  if (n != sizeof(answer)) return absl::OkStatus();
  return Explain({answer.failed_stage, answer.failed_errno, ""},
                 answer.failed_stage == SpawnStage::kWorkingDirectory ? directory : program);
}

}  // namespace dtrain::os
