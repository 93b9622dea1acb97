// SPDX-License-Identifier: Apache-2.0
#include "agent/session/leftovers.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/os/account.h"
#include "common/os/environment.h"

namespace dtrain::session {

void Leftovers::OnReport(const v1::Report& report) {
  containers_.clear();
  for (const v1::LeftContainers& left : report.containers()) {
    containers_.push_back({left.container(), {left.names().begin(), left.names().end()}});
  }
}

void Leftovers::End(std::string holder, loop::Task done) {
  holder_ = std::move(holder);
  done_ = std::move(done);
  if (containers_.empty()) return EndProcesses();
  // Removing containers takes the help of the processes that watch them.
  processes_.KillShepherd();
  processes_.KillMarked();
  EndContainers();
}

void Leftovers::EndContainers() {
  const os::Account* const user = processes_.account();
  if (user == nullptr && owner_ != geteuid()) {
    log::Warn(absl::StrCat(holder_, ": its containers may be left, and an agent that was started ",
                           "after it, or is not root, does not remove them: see podman ps -a, ",
                           "docker ps -a as its user"));
    return EndProcesses();
  }
  removal_ = std::make_unique<containers::Removal>(
      loop_, std::exchange(containers_, {}),
      user != nullptr ? os::LoginEnvironment(*user) : os::OwnEnvironment(), user,
      [this](const std::string& why) {
        removal_.reset();
        if (!why.empty()) Tell(why);
        EndProcesses();
      });
}

// The runtime's commands die with the removal.
void Leftovers::SkipContainers() {
  if (removal_ == nullptr) return;
  removal_.reset();
  Tell(
      "containers of the job may be left: their runtime has not removed them within a minute; see "
      "podman ps -a, docker ps -a on the node");
  EndProcesses();
}

void Leftovers::EndProcesses() { processes_.EndAll(std::exchange(done_, nullptr)); }

void Leftovers::Tell(const std::string& what) {
  log::Warn(absl::StrCat(holder_, ": ", what));
  warn_(what);
}

}  // namespace dtrain::session
