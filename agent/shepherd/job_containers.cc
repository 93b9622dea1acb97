// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/job_containers.h"

#include <utility>

#include "agent/shepherd/failure.h"
#include "common/base/exit_code.h"

namespace dtrain::shepherd {

void JobContainers::Prepare(const v1::JobPart& part, Prepared done) {
  prepared_ = std::move(done);
  WorkerContainers::Hooks hooks;
  hooks.preparing = [this](std::string what) {
    v1::JobEvent event;
    event.mutable_preparing()->set_what(std::move(what));
    launcher_.Send(event);
  };
  hooks.detail = [this](std::string text) { launcher_.Warn(std::move(text), /*detail=*/true); };
  all_.emplace(loop_, part, node_env_, std::move(hooks));
  all_->Prepare([this](std::optional<v1::NodeFailure> failure) { OnPrepared(std::move(failure)); });
}

void JobContainers::OnPrepared(std::optional<v1::NodeFailure> failure) {
  if (core_.state() != State::kPreparing) return;  // stopped, and its client killed by that
  const bool ready = !failure.has_value();
  if (failure) launcher_.SendFailure(*std::move(failure));
  // Not from inside the core, nor of what has just ended.
  loop_.Post([this, ready] {
    if (core_.state() == State::kPreparing) prepared_(ready);  // else stopped meanwhile
  });
}

os::ExitStatus JobContainers::EndOf(const Worker& worker, const os::ExitStatus& of_process) {
  if (!all_) return of_process;
  if (!core_.stop_asked()) {
    auto failure = all_->WhyNotStarted(worker.spec(), of_process, worker.LastWords());
    if (failure) launcher_.SendFailure(*std::move(failure));
  }
  return all_->Ended(worker.spec(), of_process, core_.stop_asked());
}

// Podman's monitors, one for each container, notice its end and have its record removed. If they
// are killed too, podman waits for their word for five seconds, and fails.
void JobContainers::KillAll() {
  if (all_ && all_->has_monitors()) {
    sweeper_.KillElsewhere();
  } else {
    sweeper_.KillAll();
  }
}

// With the monitors' help: they, and what only has their name, are killed after that.
void JobContainers::Remove(loop::Task done) {
  if (!all_) return done();
  if (all_->may_be_left()) KillAll();
  all_->Remove([this, done = std::move(done)](const std::string& why) mutable {
    if (!why.empty()) {
      launcher_.SendFailure(MakeFailure(v1::NodeFailure::KIND_CLEANUP, kExitCleanup, why));
    }
    // Not from inside of what has just ended.
    loop_.Post(std::move(done));
  });
}

}  // namespace dtrain::shepherd
