// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtrain::runtime {

using Variables = std::function<const char*(const char*)>;

// Which GPUs the launcher has given this process: it names them to CUDA by their UUIDs, and the
// process's own by its position among those (CUDA_VISIBLE_DEVICES, DTRAIN_DEVICE).
struct Pinning {
  std::vector<std::string> visible;  // empty: no UUIDs were given
  std::string own;                   // one of them; empty: not known
  bool stands = false;               // the program has set no DTRAIN_DEVICE of its own
  // A script or the program has set another CUDA_VISIBLE_DEVICES since: DTRAIN_DEVICE may be the
  // number of a GPU that the process does not see any more.
  bool renumbered = false;
};
// From the variables that the process began with, and those that it has now.
Pinning ReadPinning(const Variables& start, const Variables& now);

// The variables that this process was started with, whatever it has made of them since. Nothing
// where the system does not tell.
Variables StartVariables();
// Of such a block, "A=1\0B=2\0".
Variables VariablesOf(std::string block);

// Whether both name the same GPU, or slice of one: "GPU-5d1c…", "MIG-5d1c…". One may be cut short.
bool SameGpu(std::string_view one, std::string_view other);

}  // namespace dtrain::runtime
