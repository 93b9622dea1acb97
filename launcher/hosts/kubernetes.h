// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "launcher/hosts/allocation.h"

namespace dtrain::hosts {

// The variable that shows that we are in the launcher pod of the MPI operator's job, or of Kubeflow
// Trainer's; empty: we are not.
std::string MpiLauncherSign(const EnvLookup& env);

// The workers of the MPI operator's job in whose launcher pod we are; none when this is no such
// pod.
absl::StatusOr<std::optional<Allocation>> ReadMpiJob(const EnvLookup& env, const FileReader& read);

// The first `nodes` pods of the Indexed Job we are in, ours included, from the pod with index 0; an
// error in the others. None when this is no such Job, or for a single node: then each index is a
// job of its own.
absl::StatusOr<std::optional<Allocation>> ReadIndexedJob(const EnvLookup& env,
                                                         const FileReader& read,
                                                         std::optional<uint32_t> nodes);

}  // namespace dtrain::hosts
