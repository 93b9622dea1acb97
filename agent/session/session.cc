// SPDX-License-Identifier: Apache-2.0
#include "agent/session/session.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/log/log.h"
#include "common/os/cgroup.h"
#include "common/os/process_tree.h"

namespace dtrain::session {
namespace {

constexpr Duration kLeftoversPause = std::chrono::milliseconds(5);
constexpr Duration kLeftoversBound = std::chrono::seconds(2);

}  // namespace

Session::Session(loop::Loop& loop, Identity self, std::shared_ptr<Stream> stream,
                 std::unique_ptr<ShepherdProcess> shepherd, Readers& readers, loop::Task on_ended)
    : loop_(loop),
      core_(std::move(self), loop.Now()),
      stream_(std::move(stream)),
      readers_(readers),
      on_ended_(std::move(on_ended)),
      relay_([this](uint32_t rank, v1::StreamKind kind, uint64_t offset) {
        v1::ShepherdRequest request;
        v1::LogsDelivered& delivered = *request.mutable_logs_delivered();
        delivered.set_rank(rank);
        delivered.set_stream(kind);
        delivered.set_offset(offset);
        shepherd_->Send(request);
      }),
      shepherd_(std::move(shepherd)),
      deadline_(loop),
      leftovers_(loop),
      alive_(std::make_shared<bool>(true)) {
  stream_->Start(
      [this, alive = alive_](v1::SessionRequest request) {
        if (*alive) Feed(Request{std::move(request)});
      },
      [this, alive = alive_] {
        if (*alive) Feed(LauncherGone{});
      });
  shepherd_->Listen([this](v1::ShepherdEvent event,
                           os::UniqueFd fd) { OnShepherdEvent(std::move(event), std::move(fd)); },
                    [this](std::string why) { Feed(ShepherdGone{std::move(why)}); });
  Feed(Tick{});
}

Session::~Session() {
  *alive_ = false;
  stream_->Finish(absl::CancelledError("the agent is going away"));
}

void Session::Feed(const Event& event) {
  std::shared_ptr<bool> alive = alive_;
  std::vector<Action> actions = core_.OnEvent(loop_.Now(), event);
  for (Action& action : actions) {
    Do(action);
    if (!*alive) return;
  }
  deadline_.At(core_.NextDeadline(), [this] { Feed(Tick{}); });
}

void Session::Do(Action& action) {
  if (auto* send = std::get_if<SendEvent>(&action)) {
    // The launcher compares our clocks by it.
    if (send->event.has_heartbeat()) {
      send->event.mutable_heartbeat()->set_unix_nanos(absl::GetCurrentTimeNanos());
    }
    stream_->Send(std::move(send->event));
  } else if (auto* down = std::get_if<SendShepherd>(&action)) {
    if (down->request.has_start()) {
      const v1::JobPart& part = down->request.start();
      job_cgroup_ = os::JobCgroupName(part.job_id(), part.attempt(), part.node_rank());
    }
    shepherd_->Send(down->request);
  } else if (std::holds_alternative<SendWelcome>(action)) {
    Welcome();
  } else if (auto* probe = std::get_if<RunProbe>(&action)) {
    Probe(probe->request);
  } else if (auto* hold = std::get_if<HoldPorts>(&action)) {
    Hold(hold->count);
  } else if (std::holds_alternative<LookAtGpus>(action)) {
    Look();
  } else if (std::holds_alternative<KillLeftovers>(action)) {
    KillLeftoversUntilGone(loop_.Now() + kLeftoversBound);
  } else if (auto* end = std::get_if<End>(&action)) {
    Stop(std::move(end->status));
  }
}

void Session::Welcome() {
  auto listener = inventory::ProbeListener::Make(loop_, core_.hello().probe_token());
  if (!listener.ok()) {
    Refuse(absl::StrCat("open a port for reachability probes: ", listener.status().message()));
    return;
  }
  probe_listener_ = *std::move(listener);
  readers_.inventory([this, alive = alive_](v1::Inventory inventory) {
    if (!*alive) return;
    Feed(GpusSeen{{inventory.gpus().begin(), inventory.gpus().end()}, "", {}});
    inventory.set_probe_port(probe_listener_->port());
    inventory.set_probe_reply(probe_listener_->reply());
    v1::SessionEvent event;
    v1::Welcome& welcome = *event.mutable_welcome();
    *welcome.mutable_inventory() = std::move(inventory);
    welcome.set_job_id(core_.hello().job_id());
    welcome.set_attempt(core_.hello().attempt());
    welcome.set_incarnation(core_.hello().incarnation());
    stream_->Send(std::move(event));
  });
}

void Session::Probe(const v1::ProbeRequest& request) {
  prober_ = std::make_unique<inventory::Prober>(loop_, request, [this](v1::ProbeReport report) {
    v1::SessionEvent event;
    *event.mutable_probe_report() = std::move(report);
    stream_->Send(std::move(event));
    prober_.reset();
  });
}

void Session::Hold(uint32_t count) {
  auto held = inventory::HeldPorts::Hold(count);
  if (!held.ok()) {
    Refuse(absl::StrCat("reserve ", count, " TCP ports: ", held.status().message()));
    return;
  }
  held_ports_ = *std::move(held);
  v1::SessionEvent event;
  for (uint16_t port : held_ports_->ports()) event.mutable_ports_held()->add_ports(port);
  stream_->Send(std::move(event));
}

void Session::Look() {
  readers_.gpus([this, alive = alive_](inventory::GpuReport report) {
    if (*alive) Feed(GpusSeen{std::move(report.gpus), std::move(report.error), Living()});
  });
}

// Processes of the job: what the shepherd left comes to us.
std::vector<uint32_t> Session::Living() const {
  std::vector<uint32_t> out;
  for (const os::ProcessInfo& info : os::Descendants(getpid())) {
    if (info.pid != shepherd_->pid()) out.push_back(static_cast<uint32_t>(info.pid));
  }
  auto parent = os::FindWritableCgroup();
  if (!parent.ok() || job_cgroup_.empty()) return out;
  for (pid_t pid : os::Cgroup(absl::StrCat(*parent, "/", job_cgroup_)).Processes()) {
    out.push_back(static_cast<uint32_t>(pid));
  }
  return out;
}

void Session::OnShepherdEvent(v1::ShepherdEvent event, os::UniqueFd fd) {
  if (event.has_log_opened()) {
    relay_.Opened(event.log_opened().rank(), event.log_opened().stream(), std::move(fd));
    return;
  }
  if (event.has_log_grown()) {
    const v1::LogGrown& grown = event.log_grown();
    relay_.Grown(grown.rank(), grown.stream(), grown.size());
    return;
  }
  // No probe can come any more, and a worker may want any port.
  if (event.has_started()) probe_listener_.reset();
  if (event.has_finished()) relay_.Finished(event.finished());
  Feed(FromShepherd{std::move(event)});
}

// The death signal of the shepherd took its direct children; what these had started is in their
// cgroup, or has become our own descendant.
void Session::KillLeftoversUntilGone(TimePoint deadline) {
  relay_.Finished(v1::Finished());
  bool left = os::KillDescendants() > 0;
  auto parent = os::FindWritableCgroup();
  if (parent.ok() && !job_cgroup_.empty()) {
    os::Cgroup cgroup(absl::StrCat(*parent, "/", job_cgroup_));
    cgroup.Kill();
    left = left || cgroup.Populated();
    if (!left) cgroup.Remove().IgnoreError();  // also when none was made
  }
  if (left && loop_.Now() >= deadline) {
    log::Error("workers of a dead shepherd are left: they cannot be killed");
    left = false;
  }
  if (!left) {
    // Posted: this may run as one of several actions of one event.
    loop_.Post([this, alive = alive_] {
      if (*alive) Feed(LeftoversGone{});
    });
    return;
  }
  leftovers_.After(kLeftoversPause, [this, deadline] { KillLeftoversUntilGone(deadline); });
}

void Session::Refuse(std::string message) {
  v1::SessionEvent event;
  v1::NodeFailure& failure = *event.mutable_failure();
  failure.set_kind(v1::NodeFailure::KIND_RESOURCES);
  failure.set_exit_code(200);
  failure.set_message(std::move(message));
  stream_->Send(std::move(event));
}

void Session::Stop(absl::Status status) {
  deadline_.Cancel();
  stream_->Finish(std::move(status));
  // The owner destroys us in here.
  std::exchange(on_ended_, nullptr)();
}

}  // namespace dtrain::session
