// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/amd_gpus.h"

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/os/fd.h"

namespace dtrain::inventory {
namespace {

constexpr int kMostNodes = 1024;  // of the driver's topology: CPUs and GPUs

// gfx908 (MI100), gfx90a (MI200) and gfx94x, gfx950 (MI300 on), as the driver writes them:
// major * 10000 + minor * 100 + stepping. CPUs have 0; Radeon and integrated GPUs others.
bool IsOfDataCentre(uint32_t version) {
  return version == 90008 || version == 90010 || (version >= 90400 && version < 100000);
}

uint32_t GfxVersion(absl::string_view properties) {
  for (absl::string_view line : absl::StrSplit(properties, '\n')) {
    uint32_t version = 0;
    if (!absl::ConsumePrefix(&line, "gfx_target_version ")) continue;
    return absl::SimpleAtoi(line, &version) ? version : 0;
  }
  return 0;
}

}  // namespace

uint32_t CountAmdGpus(const Roots& roots) {
  // A container without AMD's device may yet see what the driver tells of the machine.
  const auto device = os::Exists(absl::StrCat(roots.devfs, "/kfd"));
  if (!device.ok() || !*device) return 0;
  const std::string folder = absl::StrCat(roots.sysfs, "/class/kfd/kfd/topology/nodes/");
  uint32_t count = 0;
  for (int node = 0; node < kMostNodes; ++node) {
    const auto properties = os::ReadSmallFile(absl::StrCat(folder, node, "/properties"), 1 << 16);
    // That of a GPU not given to this container is there, but cannot be read.
    if (absl::IsPermissionDenied(properties.status())) continue;
    if (!properties.ok()) break;
    if (IsOfDataCentre(GfxVersion(*properties))) ++count;
  }
  return count;
}

}  // namespace dtrain::inventory
