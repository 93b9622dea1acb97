// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <cstddef>
#include <utility>

#include "common/os/account.h"
#include "common/os/spawn_error.h"

#if defined(__SANITIZE_THREAD__)
#define DTRAIN_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DTRAIN_TSAN 1
#endif
#endif

// The child's side of Spawn: what happens between its first moment and the program that it becomes.
// Of the files of this folder only; in words of the kernel.
namespace dtrain::os {

// A child may borrow its parent's memory until it execs: no sanitizer may keep books there, nor may
// the compiler merge its frame with its parent's.
#if defined(__clang__)
#define DTRAIN_CHILD_CODE \
  __attribute__((noinline, no_sanitize("address", "thread", "undefined"), no_stack_protector))
#else
#define DTRAIN_CHILD_CODE                                                                  \
  __attribute__((noinline, no_sanitize_address, no_sanitize_thread, no_sanitize_undefined, \
                 no_stack_protector))
#endif

// Everything the child needs, made before it exists: it can neither allocate nor lock. Pointers are
// to what outlives it.
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
  int umask;      // -1: as its parent's
  bool set_nice;  // to `nice`, if the system allows it
  int nice;
  int* fds;            // in: descriptors of ours; the child turns them into its own duplicates
  const int* targets;  // ascending
  size_t fd_count;
  int report_fd;  // a pipe, the last of `fds`, for a ChildAnswer when it fails; -1: none
  // The child's answer, where it shares our memory.
  volatile SpawnStage failed_stage = SpawnStage::kNone;
  volatile int failed_errno = 0;
};

// What a child that has memory of its own tells on `report_fd`.
struct ChildAnswer {
  SpawnStage failed_stage = SpawnStage::kNone;
  int failed_errno = 0;
};

// The whole of it; ends the process where a step fails. `plan` is a ChildPlan. Does not return.
int RunChild(void* plan);

}  // namespace dtrain::os
