// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/helper.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/os/fd.h"
#include "common/os/pidfd.h"

namespace dtrain::shepherd {
namespace {

// For a helper to let its libraries go: some milliseconds.
constexpr Duration kEndPatience = std::chrono::seconds(2);

}  // namespace

Helper::Helper(loop::Loop& loop, std::string program, std::string role, os::UniqueFd listener,
               Hooks hooks)
    : loop_(loop),
      program_(std::move(program)),
      role_(std::move(role)),
      hooks_(std::move(hooks)),
      listener_(std::move(listener)),
      watch_(loop, listener_.get()),
      patience_(loop) {}

// It may be anybody: the helper looks.
void Helper::AwaitClient() {
  watch_.OnReadable([this] {
    if (ending_ || child_) return;
    if (absl::Status started = Start(); !started.ok()) hooks_.on_not_started(std::move(started));
  });
}

absl::Status Helper::Start() {
  auto beginning = hooks_.on_start();
  if (!beginning.ok()) return beginning.status();
  auto sockets = os::SocketPair();
  if (!sockets.ok()) return sockets.status();
  os::SpawnSpec spec;
  spec.argv = {program_, role_};
  spec.env = std::move(beginning->env);
  spec.working_directory = "/";
  spec.stderr_fd = STDERR_FILENO;
  spec.extra_fds = {{sockets->second.get(), kHelperChannel}, {listener_.get(), kHelperListener}};
  spec.parent_death_signal = SIGKILL;
  auto child = os::Spawn(spec);
  if (!child.ok()) return child.status();
  child_ = *std::move(child);
  channel_ = std::make_unique<loop::FrameChannel>(
      loop_, std::move(sockets->first),
      [this](absl::string_view frame, os::UniqueFd) { hooks_.on_frame(frame); },
      [](absl::Status) {});
  return channel_->Send(beginning->frame);
}

void Helper::MoveLog() {
  if (channel_ == nullptr) return;
  // A frame that lacks its descriptor would end the channel, and with it the helper.
  os::UniqueFd room(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  if (!room) return;
  room.Reset();
  channel_->Send("", STDERR_FILENO).IgnoreError();  // no bytes
}

absl::Status Helper::Send(absl::string_view frame) {
  return channel_ != nullptr ? channel_->Send(frame) : absl::OkStatus();
}

void Helper::ReadFrames() {
  if (channel_ != nullptr) channel_->ReadToEnd();
}

bool Helper::OnChild(pid_t pid) {
  if (!child_ || child_->pid != pid) return false;
  const auto reaped = os::TryReap(child_->pidfd.get());
  if (!reaped.ok() || !*reaped) return false;
  const os::ExitStatus status = **reaped;
  ReadFrames();
  child_.reset();
  channel_.reset();
  if (done_) {
    End(std::exchange(done_, nullptr));
  } else {
    hooks_.on_ended(status.signal != 0 ? absl::StrCat("was killed by signal ", status.signal)
                                       : absl::StrCat("exited with code ", status.code));
  }
  return true;
}

void Helper::End(loop::Task done) {
  ending_ = true;
  if (!child_) {
    patience_.Cancel();
    return done();
  }
  done_ = std::move(done);
  channel_.reset();  // it ends by that
  patience_.After(kEndPatience, [this] {
    if (child_) (void)os::SendSignal(child_->pidfd.get(), SIGKILL);
  });
}

}  // namespace dtrain::shepherd
