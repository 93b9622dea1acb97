// SPDX-License-Identifier: Apache-2.0
#include "agent/session/holdings.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "agent/session/withheld_gpus.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/os/process_tree.h"

namespace dtrain::session {
namespace {

// "your own job dtrain-1f" of "job dtrain-1f of alice"; empty: it is of another user.
std::string AsOwn(absl::string_view holder, absl::string_view user) {
  if (!absl::ConsumeSuffix(&holder, absl::StrCat(" of ", user))) return "";
  return absl::StrCat("your own ", holder);
}

}  // namespace

Holdings::~Holdings() {
  agent_.reservations.Release(this);
  agent_.reservations.ReleasePorts(this);
}

std::string Holdings::Holder() const {
  return absl::StrCat("job ", Escape(hello_.job_id(), 64), " of ", Escape(owner_.name, 64));
}

absl::Status Holdings::MakeDirectory(bool with_socket) {
  auto made = JobDirectory::Make(agent_.state_directory,
                                 {owner_.uid, hello_.job_id(), hello_.attempt()}, with_socket);
  if (!made.ok()) return made.status();
  directory_ = *std::move(made);
  return absl::OkStatus();
}

absl::Status Holdings::MakeHiddenDirectory(const std::string& state, v1::Reserve used) {
  auto made = JobDirectory::MakeHidden(state, {owner_.uid, hello_.job_id(), hello_.attempt()});
  if (!made.ok()) return made.status();
  directory_ = *std::move(made);
  reserved_ = std::move(used);
  return absl::OkStatus();
}

void Holdings::Adopt(JobDirectory directory, v1::Reserve reserved) {
  directory_ = std::move(directory);
  if (absl::Status claimed = Reserve(reserved); !claimed.ok()) {
    log::Error(absl::StrCat(Holder(), " runs on, but: ", claimed.message()));
  }
  reserved_ = std::move(reserved);
}

absl::Status Holdings::Reserve(const v1::Reserve& reserve) {
  reserved_.reset();
  absl::StatusOr<Share> share = ShareOf(reserve);
  if (!share.ok()) return share.status();
  absl::Status claimed = agent_.reservations.Reserve(this, Holder(), *std::move(share));
  if (claimed.ok()) reserved_ = reserve;
  return claimed;
}

absl::StatusOr<inventory::HeldPorts> Holdings::HoldPorts(uint32_t count, uint32_t listening) {
  const absl::Status claimed = agent_.reservations.ClaimPorts(this, owner_, count);
  if (!claimed.ok()) return claimed;
  auto held = inventory::HeldPorts::Hold(count, listening);
  if (!held.ok()) agent_.reservations.ReleasePorts(this);
  return held;
}

void Holdings::Mark(v1::Inventory& inventory) {
  if (!agent_.self.resumable) return;
  session::Mark(agent_.reservations, agent_.state_directory, this, inventory);
  for (v1::HeldCores& cores : *inventory.mutable_held_cores()) {
    if (const std::string own = AsOwn(cores.holder(), owner_.name); !own.empty()) {
      cores.set_holder(own);
    }
  }
  for (v1::Gpu& gpu : *inventory.mutable_gpus()) {
    absl::string_view why = gpu.withheld();
    if (!absl::ConsumePrefix(&why, "held by ")) continue;
    const std::string own = AsOwn(why, owner_.name);
    if (!own.empty()) gpu.set_withheld(absl::StrCat("held by ", own));
  }
}

absl::Status Holdings::WriteRecord(const spawn::Processes& processes,
                                   const std::vector<v1::Gpu>& gpus_before) {
  v1::JobRecord record;
  record.set_job_id(hello_.job_id());
  record.set_attempt(hello_.attempt());
  record.set_node_rank(reserved_->node_rank());
  record.set_boot_id(os::BootId());
  processes.Save(record);
  *record.mutable_gpu_uuids() = reserved_->gpu_uuids();
  record.set_cpulist(reserved_->cpulist());
  GpuRelease gpus;
  gpus.Before(gpus_before);
  gpus.Given({reserved_->gpu_uuids().begin(), reserved_->gpu_uuids().end()});
  if (gpus.watched()) {
    *record.mutable_gpus() = gpus.Save();
    record.mutable_gpus()->set_holder(Holder());
  }
  return directory_->Write(record);
}

void Holdings::GiveBack(const GpuRelease& gpus) {
  agent_.reservations.Release(this);
  if (agent_.self.resumable) {
    Withhold(agent_.reservations, agent_.state_directory, Holder(), gpus);
  }
}

void Holdings::RemoveDirectory() {
  if (directory_.has_value()) directory_->Remove();
  directory_.reset();
}

}  // namespace dtrain::session
