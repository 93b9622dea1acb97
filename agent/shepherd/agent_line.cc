// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/agent_line.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/patience.h"
#include "common/base/posix_error.h"
#include "common/log/log.h"
#include "common/os/credentials.h"

namespace dtrain::shepherd {

AgentDoor::AgentDoor(loop::Loop& loop, os::UniqueFd listening, std::optional<uid_t> agent_uid,
                     OnAgent on_agent)
    : listening_(std::move(listening)),
      agent_uid_(agent_uid),
      on_agent_(std::make_shared<OnAgent>(std::move(on_agent))),
      watch_(loop, listening_.get()) {
  Await();
}

void AgentDoor::Await() {
  watch_.OnReadable([this] { Accept(); });
}

void AgentDoor::Accept() {
  os::UniqueFd socket(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  Await();
  if (!socket) return;
  const auto peer = os::PeerOf(socket.get());
  if (!peer.ok() || !MayEnter(peer->uid)) {
    return log::Warn("a process of another user tried to pose as the agent");
  }
  const std::shared_ptr<OnAgent> on_agent = on_agent_;
  (*on_agent)(std::move(socket));
}

bool AgentDoor::MayEnter(uid_t uid) const {
  return agent_uid_ ? uid == *agent_uid_ : uid == 0 || uid == geteuid();
}

namespace {

// Our log was the launcher's connection, or its terminal, which ends only when we let it go.
void LogInto(const std::string& path) {
  os::UniqueFd log(open(path.c_str(),
                        O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  if (!log) log.Reset(open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (log) (void)dup2(log.get(), STDERR_FILENO);
}

}  // namespace

AgentLine::AgentLine(loop::Loop& loop, os::UniqueFd socket, Handlers handlers)
    : loop_(loop),
      handlers_(std::move(handlers)),
      absence_(loop, [this] { Lose(); }),
      launcher_(loop, LauncherHandlers()) {
  Connect(std::move(socket));
}

AgentLine::AgentLine(loop::Loop& loop, Door door, Handlers handlers)
    : loop_(loop),
      handlers_(std::move(handlers)),
      absence_(loop, [this] { Lose(); }),
      launcher_(loop, LauncherHandlers()) {
  Open(std::move(door.listening), door.agent_uid);
  absence_.Begin(door.lease);
}

LauncherLine::Handlers AgentLine::LauncherHandlers() {
  LauncherLine::Handlers handlers;
  handlers.on_request = [this](v1::JobRequest request) {
    handlers_.on_request(std::move(request));
  };
  handlers.on_broken = [this](const std::string& why) {
    v1::ShepherdEvent event;
    event.set_broken(why);
    Tell(event);
    Lose();
  };
  handlers.may_send = [this] { return queued_bytes() == 0; };
  handlers.before_start = [this] {
    if (channel_ != nullptr) channel_->ReadToEnd();
  };
  handlers.on_silent = [this](Duration silence) { handlers_.on_silent(silence); };
  // Posted: whoever waits for it may destroy what says so.
  handlers.on_said = [this] {
    if (!on_said_) return;
    loop_.Post([this, alive = alive_] {
      if (*alive) CheckSaid();
    });
  };
  return handlers;
}

void AgentLine::Connect(os::UniqueFd socket) {
  agent_heard_ = loop_.Now();
  channel_ = std::make_unique<loop::FrameChannel>(
      loop_, std::move(socket),
      [this](absl::string_view frame, os::UniqueFd fd) { OnFrame(frame, std::move(fd)); },
      [this](const absl::Status&) { OnClosed(); });
}

void AgentLine::Tell(const v1::ShepherdEvent& event) {
  if (channel_ == nullptr) return;
  const absl::Status sent = channel_->Send(event.SerializeAsString());
  if (!sent.ok()) log::Error(absl::StrCat("to the agent: ", sent.message()));
  if (channel_->queued_bytes() > 0) AwaitDrained();
}

// Also for the launcher's line, which waits for it.
void AgentLine::AwaitDrained() {
  channel_->OnDrained([this] { Drained(); });
}

void AgentLine::Drained() {
  launcher_.Pump();
  CheckSaid();
}

void AgentLine::WhenSaid(loop::Task task) {
  on_said_ = std::move(task);
  CheckSaid();
}

void AgentLine::CheckSaid() {
  if (!on_said_) return;
  if (channel_ == nullptr || (queued_bytes() == 0 && launcher_.said())) {
    std::exchange(on_said_, nullptr)();
  }
}

void AgentLine::OnFrame(absl::string_view frame, os::UniqueFd fd) {
  agent_heard_ = loop_.Now();
  v1::ShepherdRequest request;
  if (!request.ParseFromArray(frame.data(), static_cast<int>(frame.size()))) {
    log::Error("the agent sent an invalid message");
    return;
  }
  switch (request.kind_case()) {
    case v1::ShepherdRequest::kKeepRunning:
      Keep(std::move(*request.mutable_keep_running()), std::move(fd));
      break;
    case v1::ShepherdRequest::kAttach:
      Attach(request.attach(), std::move(fd));
      break;
    case v1::ShepherdRequest::kEndJob:
      handlers_.on_end_job(std::chrono::milliseconds(request.end_job().grace_ms()));
      Tell({});  // we have it
      break;
    case v1::ShepherdRequest::kReadLogs:
      if (!fd) return log::Error("the agent sent an invalid message");
      handlers_.on_read_logs(std::move(*request.mutable_read_logs()), std::move(fd));
      break;
    case v1::ShepherdRequest::kRelease:
      handlers_.on_released();
      break;
    case v1::ShepherdRequest::kHeldPort:
      handlers_.on_held_port(request.held_port().port(), std::move(fd));
      break;
    case v1::ShepherdRequest::KIND_NOT_SET:
      log::Error("the agent sent an invalid message");
      break;
  }
}

void AgentLine::Attach(const v1::Attach& attach, os::UniqueFd socket) {
  if (!socket) {
    log::Error("the agent sent an invalid message");
    return;
  }
  const LauncherLine::Attached attached =
      launcher_.Attach(std::move(socket), attach.launcher(),
                       std::chrono::milliseconds(attach.silence_ms()), attach.generation());
  v1::ShepherdEvent event;
  *event.mutable_attached() = attached.ours;
  Tell(event);
  if (attached.is_another) handlers_.on_another();
  launcher_.Pump();
}

void AgentLine::Keep(v1::KeepRunning keep, os::UniqueFd bound) {
  if (kept_) {
    // Another launcher has the job; how the node was before stays.
    *kept_->mutable_hello() = std::move(*keep.mutable_hello());
    return;
  }
  if (door_ != nullptr) {
    kept_ = std::move(keep);
    return;
  }
  // The agent has bound it; who calls listen() is whom the next agent will see as its peer.
  if (!bound || listen(bound.get(), 1) != 0) {
    log::Error(absl::StrCat("cannot wait for another agent: ", PosixErrorText(errno)));
    return;
  }
  kept_ = std::move(keep);
  if (!kept_->log().empty()) {
    LogInto(kept_->log());
    handlers_.on_log();
  }
  Open(std::move(bound), std::nullopt);
}

void AgentLine::Open(os::UniqueFd listening, std::optional<uid_t> agent_uid) {
  door_ = std::make_unique<AgentDoor>(loop_, std::move(listening), agent_uid,
                                      [this](os::UniqueFd socket) { Receive(std::move(socket)); });
}

void AgentLine::Receive(os::UniqueFd socket) {
  // One agent at a time, as its lock sees to: the one before is gone or about to be.
  absence_.End();
  launcher_.Detach();
  Connect(std::move(socket));
  if (kept_) handlers_.on_adopted();
}

void AgentLine::OnClosed() {
  channel_.reset();
  agent_heard_ = loop_.Now();
  launcher_.Detach();
  CheckSaid();
  if (!kept_) return Lose();
  absence_.Begin(PatienceOf(kept_->hello()));
}

void AgentLine::Lose() {
  if (std::exchange(lost_, true)) return;
  door_.reset();
  absence_.End();
  handlers_.on_lost();
}

}  // namespace dtrain::shepherd
