// SPDX-License-Identifier: Apache-2.0
// old-kernel RELEASE COMMAND...: runs a command, and all that it starts, as if Linux were as old as
// RELEASE (5.4 or 4.18): later system calls give ENOSYS, and of earlier ones what was added to them
// later gives EINVAL, or ENOPROTOOPT as an option of a socket.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

// The numbers of what is new have been the same on all machines since Linux 5.1.
static const struct {
  const char* release;
  unsigned first_missing;
  int has_pidfds;
} kReleases[] = {
    {"5.4", 436, 1},   // close_range; what 5.5 to 5.8 brought has higher numbers
    {"4.18", 424, 0},  // pidfd_send_signal
};

enum { kWaitPidfd = 3, kClonePidfd = 0x1000, kPassRights = 83 };

int main(int argc, char** argv) {
  size_t known = 0;
  const size_t count = sizeof(kReleases) / sizeof(*kReleases);
  while (known < count && (argc < 3 || strcmp(argv[1], kReleases[known].release) != 0)) ++known;
  if (known == count) {
    fprintf(stderr, "usage: old-kernel 5.4|4.18 COMMAND...\n");
    return 2;
  }
  const unsigned never = ~0U;
  const unsigned wait = kReleases[known].has_pidfds ? never : SYS_waitid;
  const unsigned clone = kReleases[known].has_pidfds ? never : SYS_clone;
  // Little endian: the first word of an argument is its lower half.
  const unsigned argument = offsetof(struct seccomp_data, args[0]);
  const unsigned option = offsetof(struct seccomp_data, args[2]);
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kReleases[known].first_missing, 9, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, wait, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kWaitPidfd, 7, 9),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, clone, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, kClonePidfd, 4, 6),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 0, 5),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, option),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kPassRights, 2, 3),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof(filter) / sizeof(*filter), filter};
  // As root without it, since it would take setuid programs their rights.
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0 &&
      (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)) {
    perror("old-kernel: seccomp");
    return 2;
  }
  execvp(argv[2], argv + 2);
  perror(argv[2]);
  return 127;
}
