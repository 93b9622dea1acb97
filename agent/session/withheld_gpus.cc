// SPDX-License-Identifier: Apache-2.0
#include "agent/session/withheld_gpus.h"

#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "agent/session/state_file.h"
#include "common/base/posix_error.h"
#include "common/log/log.h"
#include "common/os/private_file.h"
#include "common/os/process_tree.h"

namespace dtrain::session {
namespace {

std::string PathIn(const std::string& state) { return absl::StrCat(state, "/withheld"); }

void Keep(const Reservations& reservations, const std::string& state) {
  absl::Status kept = WriteWithheld(state, reservations.SaveWithheld());
  if (kept.ok()) return;
  log::Warn(absl::StrCat("the next agent will not know which GPUs are withheld: ", kept.message()));
}

}  // namespace

void Withhold(Reservations& reservations, const std::string& state, const std::string& holder,
              const GpuRelease& gpus) {
  const std::vector<HeldGpu> held = gpus.FindHeld();
  // Its launcher may be gone, and who looks after the node wants to know in any case.
  for (const HeldGpu& gpu : held) log::Error(absl::StrCat("after ", holder, ": ", gpu.text));
  reservations.Withhold(holder, gpus);
  if (!held.empty()) Keep(reservations, state);
}

void Mark(Reservations& reservations, const std::string& state, Reservations::Key session,
          v1::Inventory& inventory) {
  const size_t before = reservations.withheld();
  reservations.Mark(session, inventory);
  if (reservations.withheld() != before) Keep(reservations, state);
}

absl::Status WriteWithheld(const std::string& state, const std::vector<v1::GpuUse>& uses) {
  const std::string path = PathIn(state);
  if (uses.empty()) {
    if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
    return PosixError(errno, absl::StrCat("remove ", path));
  }
  v1::WithheldGpus withheld;
  withheld.set_boot_id(os::BootId());
  withheld.mutable_uses()->Add(uses.begin(), uses.end());
  return WriteStateFile(path, withheld.SerializeAsString());
}

absl::StatusOr<std::vector<v1::GpuUse>> ReadWithheld(const std::string& state) {
  auto bytes = os::ReadPrivateFile(PathIn(state));
  if (absl::IsNotFound(bytes.status())) return std::vector<v1::GpuUse>();
  if (!bytes.ok()) return bytes.status();
  v1::WithheldGpus withheld;
  if (!withheld.ParseFromString(*bytes)) {
    return absl::DataLossError(absl::StrCat(PathIn(state), " is damaged"));
  }
  if (withheld.boot_id() != os::BootId()) return std::vector<v1::GpuUse>();
  return std::vector<v1::GpuUse>(withheld.uses().begin(), withheld.uses().end());
}

}  // namespace dtrain::session
