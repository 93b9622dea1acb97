// SPDX-License-Identifier: Apache-2.0
// A session until its job has started: what the launcher learns of the node, and reserves there.
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/inventory/limits.h"
#include "agent/session/session.h"
#include "agent/session/withheld_gpus.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/os/process_tree.h"

namespace dtrain::session {

void Session::Prepare() {
  if (!PrepareAgent()) return DropStart();
  GiveHeldPorts();
  // No probe can come any more, and a worker may want any port.
  probe_listener_.reset();
}

// The servers of the ranks listen there; they outlive us, as the ranks do. One that does not come
// is missed by the shepherd, which knows for what.
void Session::GiveHeldPorts() {
  if (!held_ports_) return;
  for (const uint32_t port : held_ports_->listening()) {
    v1::ShepherdRequest held;
    held.mutable_held_port()->set_port(port);
    shepherd_->Send(held, held_ports_->SocketOf(port)).IgnoreError();  // some bytes
  }
}

// Then there is no job: a shepherd without a part exits.
void Session::DropStart() {
  dropped_ = true;
  v1::ShepherdRequest request;
  request.mutable_end_job();
  ToShepherd(request);
}

// What a resident agent does first: an agent after it must be able to answer for the job.
bool Session::PrepareAgent() {
  if (!directory_.has_value()) {
    if (!agent_.self.resumable) return true;
    // Its launcher has been told, yet carries on.
    Refuse(v1::NodeFailure::KIND_REFUSED, kExitState, "the job has no folder on this node");
    return false;
  }
  if (!reserved_) {
    Refuse(v1::NodeFailure::KIND_REFUSED, kExitStartAgents,
           "the job begins without having reserved what it uses on this node");
    return false;
  }
  if (absl::Status written = WriteRecord(); !written.ok()) {
    Refuse(v1::NodeFailure::KIND_REFUSED, kExitState, std::string(written.message()));
    return false;
  }
  v1::ShepherdRequest keep;
  *keep.mutable_keep_running()->mutable_hello() = core_.hello();
  for (v1::Gpu& gpu : gpus_before_) {
    *keep.mutable_keep_running()->add_gpus_before() = std::move(gpu);
  }
  const os::UniqueFd socket = directory_->TakeSocket();
  const absl::Status sent = shepherd_->Send(keep, socket.get());
  if (!sent.ok()) {
    Refuse(v1::NodeFailure::KIND_RESOURCES, kExitStartAgents, std::string(sent.message()));
  }
  return sent.ok();
}

absl::Status Session::WriteRecord() {
  v1::JobRecord record;
  record.set_job_id(core_.hello().job_id());
  record.set_attempt(core_.hello().attempt());
  record.set_node_rank(reserved_->node_rank());
  record.set_boot_id(os::BootId());
  shepherd_->processes().Save(record);
  *record.mutable_gpu_uuids() = reserved_->gpu_uuids();
  record.set_cpulist(reserved_->cpulist());
  GpuRelease gpus;
  gpus.Before(gpus_before_);
  gpus.Given({reserved_->gpu_uuids().begin(), reserved_->gpu_uuids().end()});
  if (gpus.watched()) {
    *record.mutable_gpus() = gpus.Save();
    record.mutable_gpus()->set_holder(Holder());
  }
  return directory_->Write(record);
}

void Session::Welcome() {
  v1::SessionEvent event;
  v1::Welcome& welcome = *event.mutable_welcome();
  welcome.set_job_id(core_.hello().job_id());
  welcome.set_attempt(core_.hello().attempt());
  welcome.set_incarnation(core_.hello().incarnation());
  welcome.set_resumable(agent_.self.resumable);
  if (agent_.self.resumable) {
    auto made =
        JobDirectory::Make(agent_.state_directory, core_.hello().job_id(), core_.hello().attempt(),
                           /*with_socket=*/!shepherd_->processes().is_prepared());
    if (!made.ok()) {
      return Refuse(v1::NodeFailure::KIND_STATE, kExitState, std::string(made.status().message()));
    }
    directory_ = *std::move(made);
  }
  auto listener = inventory::ProbeListener::Make(loop_, core_.hello().probe_token());
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
    Feed(GpusSeen{gpus_before_, "", {}});
    inventory.set_probe_port(probe_listener_->port());
    inventory.set_probe_reply(probe_listener_->reply());
    *event.mutable_welcome()->mutable_inventory() = std::move(inventory);
    Send(event);
  });
}

// For as long as we live.
void Session::ReadInventory(absl::AnyInvocable<void(v1::Inventory)> then) {
  auto& read = core_.hello().no_gpus() ? agent_.readers.without_gpus : agent_.readers.inventory;
  read([this, alive = alive_, then = std::move(then)](v1::Inventory inventory) mutable {
    if (!*alive) return;
    for (std::string& warning : inventory::WarningsOf(
             inventory::ReadLockedMemory({}, shepherd_->processes().shepherd_pid()))) {
      inventory.add_warnings(std::move(warning));
    }
    if (shepherd_->processes().is_prepared()) inventory.set_cgroup_writable(true);
    if (agent_.self.resumable) {
      Mark(agent_.reservations, agent_.state_directory, this, inventory);
    }
    then(std::move(inventory));
  });
}

std::string Session::Holder() const {
  return absl::StrCat("job ", Escape(core_.hello().job_id(), 64), " of ", Escape(owner_.name, 64));
}

absl::Status Session::Claim(absl::StatusOr<Share> share) {
  if (!share.ok()) return share.status();
  return agent_.reservations.Reserve(this, Holder(), *std::move(share));
}

void Session::Reserve(const v1::Reserve& reserve) {
  const absl::Status claimed = Claim(ShareOf(reserve));
  reserved_.reset();
  if (claimed.ok()) reserved_ = reserve;
  v1::SessionEvent event;
  event.mutable_reserved()->set_refused(std::string(claimed.message()));
  Send(event);
}

void Session::Probe(const v1::ProbeRequest& request) {
  prober_ = std::make_unique<inventory::Prober>(loop_, request, [this](v1::ProbeReport report) {
    v1::SessionEvent event;
    *event.mutable_probe_report() = std::move(report);
    Send(event);
    prober_.reset();
  });
}

void Session::Hold(const HoldPorts& hold) {
  auto held = inventory::HeldPorts::Hold(hold.count, hold.listening);
  if (!held.ok()) {
    return Refuse(v1::NodeFailure::KIND_RESOURCES, kExitStartAgents,
                  absl::StrCat("reserve ", hold.count, " TCP ports: ", held.status().message()));
  }
  held_ports_ = *std::move(held);
  v1::SessionEvent event;
  for (uint16_t port : held_ports_->ports()) event.mutable_ports_held()->add_ports(port);
  Send(event);
}

}  // namespace dtrain::session
