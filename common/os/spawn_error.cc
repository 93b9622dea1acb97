// SPDX-License-Identifier: Apache-2.0
#include "common/os/spawn_error.h"

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"
#include "common/base/text.h"
#include "common/os/cgroup.h"

namespace dtrain::os {

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
      if (e == EAGAIN) {
        return absl::Status(absl::ErrnoToStatusCode(e),
                            absl::StrCat("start a process for ", shown, ": ", PosixErrorText(e),
                                         ", as ", ReachedProcessLimit(), " is reached"));
      }
      return PosixError(e, absl::StrCat("start a process for ", shown));
    case SpawnStage::kCgroup:
      return PosixError(e, "put a new process into its cgroup");
    case SpawnStage::kAffinity:
      return PosixError(e, "bind a new process to its cpus");
    case SpawnStage::kScheduling:
      return PosixError(e, "reset the scheduling policy of a new process");
    case SpawnStage::kUser:
      return PosixError(e, "switch a new process to its user");
    case SpawnStage::kKeyring:
      return PosixError(e, "give a new process a session keyring of its own");
    case SpawnStage::kLimits:
      return PosixError(e, "set the resource limits of a new process");
    default:
      return PosixError(e, absl::StrCat("prepare a process for ", shown));
  }
}

}  // namespace dtrain::os
