// SPDX-License-Identifier: Apache-2.0
// Containers that a shepherd, which was killed, has left.
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/session/session.h"
#include "common/log/log.h"
#include "common/os/account.h"
#include "common/os/environment.h"

namespace dtrain::session {

// What their clients would have done, and after them the shepherd.
void Session::RemoveContainers(loop::Task then) {
  const os::Account* const user = shepherd_->processes().account();
  if (user == nullptr && owner_.uid != geteuid()) {
    log::Warn(absl::StrCat(Holder(), ": its containers may be left, and an agent that was started ",
                           "after it, or is not root, does not remove them: see podman ps -a, ",
                           "docker ps -a as its user"));
    return then();
  }
  removal_ = std::make_unique<containers::Removal>(
      loop_, std::exchange(containers_, {}),
      user != nullptr ? os::LoginEnvironment(*user) : os::OwnEnvironment(), user,
      [this, then = std::move(then)](const std::string& why) mutable {
        removal_.reset();
        if (!why.empty()) WarnOfContainers(why);
        then();  // may destroy us
      });
}

// Its commands die with it.
void Session::StopRemoval() {
  if (removal_ == nullptr) return;  // no container is waited for
  removal_.reset();
  WarnOfContainers(
      "containers of the job may be left: their runtime has not removed them within a minute; see "
      "podman ps -a, docker ps -a on the node");
  EndAll();
}

void Session::WarnOfContainers(const std::string& what) {
  log::Warn(absl::StrCat(Holder(), ": ", what));
  v1::SessionEvent event;
  event.mutable_warning()->set_message(what);
  Send(event);
}

}  // namespace dtrain::session
