// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/os/pidfd.h"
#include "common/os/spawn.h"

namespace dtrain::containers {

// A runtime's program that runs no worker: it looks for an image, fetches one, removes containers.
// Dies with us, and with this. Loop thread.
class ClientRun {
 public:
  struct What {
    std::vector<std::string> argv;
    std::vector<std::string> env;
    const os::Account* user = nullptr;  // null: as ourselves; to stay until Start returns
    Duration limit{};
  };
  struct End {
    os::ExitStatus status;
    bool late = false;   // it was killed at its limit
    std::string output;  // the end of what it wrote, both streams
  };
  // `done` may destroy it.
  using Done = absl::AnyInvocable<void(End)>;
  static absl::StatusOr<std::unique_ptr<ClientRun>> Start(loop::Loop& loop, const What& what,
                                                          Done done);
  ~ClientRun();
  ClientRun(const ClientRun&) = delete;
  ClientRun& operator=(const ClientRun&) = delete;

  pid_t pid() const { return child_.pid; }
  // For an owner that reaps all children: this one has ended. False: it is not ours; else it has
  // been reaped, and `done` was called.
  bool OnChild(pid_t pid);

 private:
  ClientRun(loop::Loop& loop, os::Child child, os::UniqueFd output, Done done);
  void Watch();
  void WatchOutput();
  bool ReadOutput();
  void Reap();

  loop::Loop& loop_;
  os::Child child_;
  os::UniqueFd output_;
  std::optional<os::PendingChild> pending_;  // of another user's
  Done done_;
  bool ended_ = false;
  bool late_ = false;
  std::string text_;
  std::unique_ptr<loop::FdWatch> exit_watch_, output_watch_;
  loop::Timer limit_;
};

// "podman pull x" and how that ended, for people: what failed, and its last lines.
std::string Describe(const std::vector<std::string>& argv, const ClientRun::End& end);

}  // namespace dtrain::containers
