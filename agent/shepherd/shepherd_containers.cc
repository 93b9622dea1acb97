// SPDX-License-Identifier: Apache-2.0
// Workers in containers: what must be done before the first starts, and after the last has ended.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/failure.h"
#include "agent/shepherd/shepherd.h"
#include "common/base/exit_code.h"

namespace dtrain::shepherd {

void Shepherd::PrepareContainers() {
  WorkerContainers::Hooks hooks;
  hooks.preparing = [this](std::string what) {
    v1::JobEvent event;
    event.mutable_preparing()->set_what(std::move(what));
    launcher_.Send(event);
  };
  hooks.detail = [this](std::string text) { launcher_.Warn(std::move(text), /*detail=*/true); };
  containers_.emplace(loop_, part_, agent_env_, std::move(hooks));
  containers_->Prepare([this](std::optional<v1::NodeFailure> failure) {
    if (core_.state() != State::kPreparing) return;  // stopped, and its client killed by that
    if (failure) launcher_.SendFailure(*std::move(failure));
    // Not from inside the core, nor of what has just ended.
    loop_.Post([this, failed = failure.has_value()] {
      if (core_.state() != State::kPreparing) return;  // stopped meanwhile
      if (failed) {
        Feed(SpawnFailed{0});
      } else {
        Feed(Prepared{});
      }
    });
  });
}

// Podman's monitors, one for each container, notice its end and have its record removed. If they
// are killed too, podman waits for their word for five seconds, and fails.
void Shepherd::KillAll() {
  if (containers_ && containers_->has_monitors()) {
    sweeper_.KillElsewhere();
  } else {
    sweeper_.KillAll();
  }
}

// No client is left. What they may have left is removed with the monitors' help, and
// then all that is still there is killed: they, and what only has their name.
void Shepherd::SweepContainers() {
  loop::Task sweep = [this] { sweeper_.Sweep([this] { Feed(Swept{}); }); };
  if (!containers_) return sweep();
  if (containers_->may_be_left()) KillAll();
  containers_->Remove([this, sweep = std::move(sweep)](std::string why) mutable {
    if (!why.empty()) {
      launcher_.SendFailure(MakeFailure(v1::NodeFailure::KIND_CLEANUP, kExitCleanup, why));
    }
    // Not from inside of what has just ended.
    loop_.Post(std::move(sweep));
  });
}

}  // namespace dtrain::shepherd
