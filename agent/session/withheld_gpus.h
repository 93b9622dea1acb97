// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/session/gpu_release.h"
#include "agent/session/reservations.h"
#include "dtrain/v1/state.pb.h"

// GPUs that are not given out, on disk for the agent that comes after this one: the file `withheld`
// of its state directory.
namespace dtrain::session {

// A job of a resident agent has ended: what of its GPUs is not free is withheld, here and on disk,
// and logged.
void Withhold(Reservations& reservations, const std::string& state, const std::string& holder,
              const GpuRelease& gpus);
// Reservations::Mark, and what has become free is free on disk, too.
void Mark(Reservations& reservations, const std::string& state, Reservations::Key session,
          v1::Inventory& inventory);

// With none there is no file.
absl::Status WriteWithheld(const std::string& state, const std::vector<v1::GpuUse>& uses);
// Empty when there is no file, or it is of before the machine was started anew. DATA_LOSS: it is
// damaged.
absl::StatusOr<std::vector<v1::GpuUse>> ReadWithheld(const std::string& state);

}  // namespace dtrain::session
