// SPDX-License-Identifier: Apache-2.0
#include "launcher/end_hook.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/exit_code.h"
#include "common/os/environment.h"
#include "common/os/pidfd.h"

namespace dtrain {
namespace {

// Then whoever waits is told what for.
constexpr Duration kSlow = std::chrono::seconds(10);
// Between SIGTERM and SIGKILL.
constexpr Duration kHookGrace = std::chrono::seconds(5);
// After SIGKILL. A process that waits for a dead file server ends when that answers, if ever.
constexpr Duration kKillTakes = std::chrono::seconds(10);

}  // namespace

EndHook::Surroundings EndHook::Of(const v1::Spec& spec) {
  Surroundings surroundings;
  for (const v1::EnvVar& variable : spec.environment()) {
    surroundings.environment.push_back(absl::StrCat(variable.name(), "=", variable.value()));
  }
  surroundings.working_directory = spec.working_directory();
  return surroundings;
}

EndHook::Surroundings EndHook::OurOwn() { return {os::OwnEnvironment(), ""}; }

absl::StatusOr<std::unique_ptr<EndHook>> EndHook::Start(loop::Loop& loop,
                                                        const std::string& command,
                                                        Surroundings surroundings,
                                                        const Ended& ended, Limits limits,
                                                        Done done) {
  os::SpawnSpec child;
  child.argv = {"/bin/sh", "-c", command};
  child.env = std::move(surroundings.environment);
  child.env.push_back(absl::StrCat("DTRAIN_JOB_ID=", ended.job_id));
  child.env.push_back(absl::StrCat("DTRAIN_EXIT_CODE=", ended.exit_code));
  child.env.push_back(absl::StrCat("DTRAIN_SUMMARY=", ended.summary));
  child.working_directory = std::move(surroundings.working_directory);
  child.stdout_fd = STDOUT_FILENO;
  child.stderr_fd = STDERR_FILENO;
  auto started = os::Spawn(child);
  if (!started.ok()) return started.status();
  return std::unique_ptr<EndHook>(
      new EndHook(loop, *std::move(started), std::move(limits), std::move(done)));
}

EndHook::EndHook(loop::Loop& loop, os::Child child, Limits limits, Done done)
    : child_(std::move(child)),
      limits_(std::move(limits)),
      done_(std::move(done)),
      watch_(loop, child_.pidfd.get()),
      slow_(loop),
      timeout_(loop) {
  watch_.OnReadable([this] { OnEnd(); });
  if (limits_.at_most > kSlow) slow_.After(kSlow, [this] { OnSlow(); });
  timeout_.After(limits_.at_most, [this] { OnTimeout(); });
}

void EndHook::OnSlow() {
  limits_.say(absl::StrCat("--on-end still runs, as process ", child_.pid, "; it is ended after ",
                           absl::FormatDuration(absl::FromChrono(limits_.at_most)),
                           " (--on-end-timeout)"));
}

// The group is its own, and not another's before it is reaped.
void EndHook::OnTimeout() {
  limits_.say(absl::StrCat("warning: --on-end has not ended within ",
                           absl::FormatDuration(absl::FromChrono(limits_.at_most)),
                           " (--on-end-timeout): it is ended"));
  (void)kill(-child_.pid, SIGTERM);
  timeout_.After(kHookGrace, [this] { Kill(); });
}

void EndHook::Kill() {
  (void)kill(-child_.pid, SIGKILL);
  timeout_.After(kKillTakes, [this] { GiveUp(); });
}

void EndHook::GiveUp() {
  limits_.say(
      absl::StrCat("warning: --on-end (process ", child_.pid,
                   ") cannot be killed: its file server may be gone; dtrain waits for it no "
                   "longer"));
  Finish(std::nullopt);
}

void EndHook::OnEnd() {
  const auto status = os::TryReap(child_.pidfd.get());
  if (status.ok() && !*status) return watch_.OnReadable([this] { OnEnd(); });
  int code = kExitState;
  if (status.ok()) {
    code = (*status)->signal != 0 ? kExitSignalBase + (*status)->signal : (*status)->code;
  }
  Finish(code);
}

// One that was given up may still end.
void EndHook::Finish(std::optional<int> code) {
  slow_.Cancel();
  timeout_.Cancel();
  if (done_) std::exchange(done_, nullptr)(code);
}

}  // namespace dtrain
