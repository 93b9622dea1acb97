// SPDX-License-Identifier: Apache-2.0
#include "agent/session/joining.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/inventory/cpu.h"
#include "agent/inventory/limits.h"
#include "common/base/exit_code.h"
#include "common/log/log.h"
#include "common/os/logout.h"
#include "common/os/process_tree.h"

namespace dtrain::session {
namespace {

// Between two looks for processes of an earlier attempt.
constexpr Duration kEarlierPause = std::chrono::milliseconds(100);
// Of the agent that comes after us, in its folder.
constexpr char kLog[] = "/agent.log";

}  // namespace

void Joining::Do(const SendWelcome&) {
  v1::SessionEvent event = WelcomeEvent();
  if (agent_.self.resumable) {
    const absl::Status made =
        holdings_.MakeDirectory(/*with_socket=*/!shepherd_.processes().is_prepared());
    if (!made.ok()) {
      return Refuse(v1::NodeFailure::KIND_STATE, kExitState, std::string(made.message()));
    }
  }
  auto listener = inventory::ProbeListener::Make(agent_.loop, hello_.probe_token());
  if (!listener.ok()) {
    return Refuse(
        v1::NodeFailure::KIND_RESOURCES, kExitStartAgents,
        absl::StrCat("open a port for reachability probes: ", listener.status().message()));
  }
  probe_listener_ = *std::move(listener);
  ReadInventory([this, event = std::move(event)](v1::Inventory inventory) mutable {
    // A launcher that did not wait for it, and started, needs no Welcome any more.
    if (probe_listener_ == nullptr) return;
    gpus_before_ = {inventory.gpus().begin(), inventory.gpus().end()};
    handlers_.on_gpus(gpus_before_);
    inventory.set_probe_port(probe_listener_->port());
    inventory.set_probe_reply(probe_listener_->reply());
    *event.mutable_welcome()->mutable_inventory() = std::move(inventory);
    TellWelcome(std::move(event));
  });
}

// The launcher may have lost this node while it had workers, and knows of none that live once it is
// welcome. Their shepherd ends them, as it does not hear their agent any more.
void Joining::TellWelcome(v1::SessionEvent event) {
  if (hello_.attempt() > 0 && !hello_.has_elastic() && !agent_.self.resumable &&
      !os::FindByEnvironment(geteuid(), {absl::StrCat("DTRAIN_JOB_ID=", hello_.job_id())})
           .empty()) {
    earlier_.After(kEarlierPause,
                   [this, event = std::move(event)]() mutable { TellWelcome(std::move(event)); });
    return;
  }
  handlers_.tell(event);
}

void Joining::WelcomeAgain(absl::AnyInvocable<void(const v1::SessionEvent&)> then) {
  ReadInventory([this, then = std::move(then)](v1::Inventory inventory) mutable {
    if (probe_listener_ != nullptr) {
      inventory.set_probe_port(probe_listener_->port());
      inventory.set_probe_reply(probe_listener_->reply());
    }
    v1::SessionEvent event = WelcomeEvent();
    *event.mutable_welcome()->mutable_inventory() = std::move(inventory);
    then(event);
  });
}

v1::SessionEvent Joining::WelcomeEvent() const {
  v1::SessionEvent event;
  v1::Welcome& welcome = *event.mutable_welcome();
  welcome.set_job_id(hello_.job_id());
  welcome.set_attempt(hello_.attempt());
  welcome.set_incarnation(hello_.incarnation());
  welcome.set_resumable(agent_.self.resumable);
  if (agent_.self.resumable) {
    os::AtLogout at_logout = os::ReadAtLogout();
    welcome.set_ends_at_logout(std::move(at_logout.ends_processes));
    welcome.set_removes_ipc_at_logout(std::move(at_logout.removes_ipc));
  }
  return event;
}

// One answer is sent to all questions that came while it was looked for.
void Joining::Do(const SendInventory&) {
  if (std::exchange(looking_, true)) return;
  ReadInventory([this](v1::Inventory inventory) {
    looking_ = false;
    v1::SessionEvent event;
    *event.mutable_inventory() = std::move(inventory);
    handlers_.tell(event);
  });
}

// For as long as we live.
void Joining::ReadInventory(absl::AnyInvocable<void(v1::Inventory)> then) {
  auto& read = hello_.no_gpus() ? agent_.readers.without_gpus : agent_.readers.inventory;
  read([this, alive = alive_, then = std::move(then)](v1::Inventory inventory) mutable {
    if (!*alive) return;
    const inventory::Roots& roots = agent_.readers.roots;
    const pid_t shepherd = shepherd_.processes().shepherd_pid();
    for (std::string& warning :
         inventory::WarningsOf(inventory::ReadLockedMemory(roots, shepherd))) {
      inventory.add_warnings(std::move(warning));
    }
    if (std::string left = agent_.readers.left_memory.For(holdings_.owner().uid); !left.empty()) {
      inventory.add_warnings(std::move(left));
    }
    if (shepherd_.processes().is_prepared()) {
      inventory.set_cgroup_writable(true);
      // Workers are in dtrain-spawner's unit, not in ours.
      inventory.set_cpu_quota(inventory::ReadCpuQuota(roots, shepherd));
    }
    holdings_.Mark(inventory);
    then(std::move(inventory));
  });
}

void Joining::Do(const RunProbe& probe) {
  prober_ = std::make_unique<inventory::Prober>(agent_.loop, probe.request,
                                                [this](v1::ProbeReport report) {
                                                  v1::SessionEvent event;
                                                  *event.mutable_probe_report() = std::move(report);
                                                  handlers_.tell(event);
                                                  prober_.reset();
                                                });
}

void Joining::Do(const HoldPorts& hold) {
  auto held = holdings_.HoldPorts(hold.count, hold.listening);
  if (!held.ok()) {
    return Refuse(v1::NodeFailure::KIND_RESOURCES, kExitStartAgents,
                  absl::StrCat("reserve ", hold.count, " TCP ports: ", held.status().message()));
  }
  held_ports_ = *std::move(held);
  v1::SessionEvent event;
  for (uint16_t port : held_ports_->ports()) event.mutable_ports_held()->add_ports(port);
  handlers_.tell(event);
}

void Joining::Do(const ReserveShare& reserve) {
  v1::SessionEvent event;
  // It is not shown to people: so it must have nothing, and cannot start anything either.
  event.mutable_reserved()->set_refused(
      hello_.elastic().survey() ? "a survey reserves nothing"
                                : std::string(holdings_.Reserve(reserve.reserve).message()));
  handlers_.tell(event);
}

bool Joining::Prepare() {
  if (agent_.self.resumable && !PrepareResident()) return false;
  GiveHeldPorts();
  // No probe can come any more, and a worker may want any port.
  probe_listener_.reset();
  return true;
}

// An agent after us must be able to answer for the job.
bool Joining::PrepareResident() {
  if (!holdings_.has_directory()) {
    // Its launcher has been told, yet carries on.
    Refuse(v1::NodeFailure::KIND_REFUSED, kExitState, "the job has no folder on this node");
    return false;
  }
  if (!holdings_.has_reserved()) {
    Refuse(v1::NodeFailure::KIND_REFUSED, kExitStartAgents,
           "the job begins without having reserved what it uses on this node");
    return false;
  }
  const absl::Status kept = KeepRunning(/*log=*/"");
  if (!kept.ok()) Refuse(v1::NodeFailure::KIND_REFUSED, kExitState, std::string(kept.message()));
  return kept.ok();
}

absl::Status Joining::KeepRunning(const std::string& log) {
  absl::Status done = holdings_.WriteRecord(shepherd_.processes(), gpus_before_);
  if (!done.ok()) return done;
  v1::ShepherdRequest keep;
  *keep.mutable_keep_running()->mutable_hello() = hello_;
  keep.mutable_keep_running()->set_log(log);
  for (v1::Gpu& gpu : gpus_before_) {
    *keep.mutable_keep_running()->add_gpus_before() = std::move(gpu);
  }
  const os::UniqueFd socket = holdings_.TakeSocket();
  return shepherd_.Send(keep, socket.get());
}

absl::Status Joining::MayBeLeft() {
  if (const std::string ends = os::ReadAtLogout().ends_processes; !ends.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("it ends all processes of users who log out (", ends, ")"));
  }
  if (getenv("SLURM_STEP_ID") != nullptr) {
    return absl::FailedPreconditionError(
        "Slurm ends all processes of a step with the command that started it");
  }
  return absl::OkStatus();
}

// Twice changes nothing. A shepherd that reads nothing already is not asked either.
absl::Status Joining::PrepareToBeLeft(const std::string& state, v1::Reserve used) {
  if (holdings_.has_directory()) return absl::OkStatus();
  const absl::Status reads_nothing =
      absl::UnavailableError("the job's shepherd there reads nothing: it is stopped, or hangs");
  if (!shepherd_.has_all()) return reads_nothing;
  absl::Status ready = holdings_.MakeHiddenDirectory(state, std::move(used));
  if (!ready.ok()) return ready;
  ready = KeepRunning(absl::StrCat(state, kLog));
  if (ready.ok() && !shepherd_.has_all()) ready = reads_nothing;
  if (!ready.ok()) holdings_.RemoveDirectory();
  return ready;
}

bool Joining::Leave() {
  if (absl::Status shown = holdings_.ShowDirectory(); !shown.ok()) {
    log::Error(absl::StrCat("cannot leave the job to another agent: ", shown.message()));
    return false;
  }
  agent_.successor->leave();
  return true;
}

// The servers of the ranks listen there; they outlive us, as the ranks do. One that does not come
// is missed by the shepherd, which knows for what.
void Joining::GiveHeldPorts() {
  if (!held_ports_) return;
  for (const uint32_t port : held_ports_->listening()) {
    v1::ShepherdRequest held;
    held.mutable_held_port()->set_port(port);
    shepherd_.Send(held, held_ports_->SocketOf(port)).IgnoreError();  // some bytes
  }
}

void Joining::Refuse(v1::NodeFailure::Kind kind, int exit_code, std::string message) {
  v1::SessionEvent event;
  v1::NodeFailure& failure = *event.mutable_failure();
  failure.set_kind(kind);
  failure.set_exit_code(exit_code);
  failure.set_message(std::move(message));
  handlers_.tell(event);
}

}  // namespace dtrain::session
