// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/os/unique_fd.h"

namespace dtrain::os {

// Orphans among the descendants of this process become its children, to be reaped by it.
absl::Status BecomeSubreaper();

struct ProcessInfo {
  pid_t pid = 0;
  uint64_t start_time = 0;  // with the pid, names a process for good
  char state = '?';         // 'D': in an uninterruptible wait, 'Z': ended, not reaped;
                            // '?' also of one whose main thread alone has ended
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  bool exits = false;  // it ends, and frees its memory
};

// Absent: there is no such process.
std::optional<ProcessInfo> FindProcess(pid_t pid);

// What the main thread of a process has started itself. Empty where the kernel does not say
// (CONFIG_PROC_CHILDREN). One small file.
std::vector<pid_t> ChildrenOfMainThread(pid_t pid);

// A pidfd of the process that had this pid, this start time and this user. NOT_FOUND: it has ended,
// and the pid may mean another one.
absl::StatusOr<UniqueFd> OpenProcess(pid_t pid, uint64_t start_time, uid_t uid);

// Processes below `root`, from one pass over /proc: some may have ended since, some may be new.
std::vector<ProcessInfo> Descendants(pid_t root);

// Splits a look at very many processes: it stops after `most` of processor time, and the next look
// goes on from there.
struct LookInParts {
  Duration most{};
  pid_t next = 0;  // 0: the last look came to the end
};

// Workers, and all that they start, have the mark (see ProcessMark) of their shepherd here.
inline constexpr char kShepherdVariable[] = "DTRAIN_SHEPHERD";

// Processes of one user whose environment holds all the entries ("NAME=value"): what a job has
// started, wherever it hangs in the tree. Those whose environment we may not read are not found; of
// a large one the first 256 KiB count. For one that is in the middle of an exec it waits, some
// hundredths of a second at most. `shepherd` (a mark; may be empty): what another living shepherd
// has is not found.
std::vector<ProcessInfo> FindByEnvironment(uid_t uid, const std::vector<std::string>& entries,
                                           LookInParts* parts = nullptr,
                                           const std::string& shepherd = "");

// The same with what else is told of them.
struct MarkedProcess {
  ProcessInfo info;
  uid_t uid = 0;
  std::string environment;  // "NAME=value", each with a NUL behind it
};
// Processes of this PID namespace that have a variable of that name, and those of others whose
// variable `namespace_variable` has the number of this one. Those whose environment we may not read
// are not found.
std::vector<MarkedProcess> FindByVariable(const std::string& name,
                                          const std::string& namespace_variable);
// The variable's value in an `environment`; empty: there is none.
std::string VariableOf(const std::string& environment, const std::string& name);

// Names the PID namespace that a process is in (0: this one); empty: there is none, or it is not
// ours to know.
std::string PidNamespace(pid_t pid = 0);

// Names a process for good: "PID:START_TIME:BOOT_ID".
std::string ProcessMark(pid_t pid);
std::string ProcessMark(pid_t pid, uint64_t start_time);
// Whether the process of a mark is there, and not a zombie. False also of what is no mark.
bool Lives(const std::string& mark);

// A signal to those that are still the processes they were when listed. Returns how many there
// were, ended ones not counted.
size_t Signal(const std::vector<ProcessInfo>& processes, int signal);
// SIGKILL to them. List and call again until it returns 0: they may fork meanwhile.
size_t Kill(const std::vector<ProcessInfo>& processes);

// SIGKILL to the process groups of those that are children of this process, in one step for all of
// a group, so that none gets away by forking meanwhile. They are not reaped before this returns, so
// a group is still theirs. Not to groups that may have others in them: our own, and those in our
// session that none of `processes` leads.
void KillGroups(const std::vector<ProcessInfo>& processes);

// Undoes for a process what it inherited of a service's OOMScoreAdjust: out of memory, the kernel
// shall choose it before the service.
void ResetOomScore(pid_t pid);

// Names this boot of the machine; empty when the kernel does not say.
std::string BootId();

// When a process was started, in the kernel's ticks; nullopt when there is none.
std::optional<uint64_t> StartTime(pid_t pid);

// Where in the kernel a process waits ("nfs_wait_on_request"), for who must find out why it cannot
// be killed; "unknown" when that cannot be read.
std::string WaitChannel(pid_t pid);

}  // namespace dtrain::os
