// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "dtrain/v1/node.pb.h"

namespace dtrain::inventory {

struct VisibleDevices {
  std::vector<size_t> picked;  // positions in `gpus`, in the order the value names them
  std::string warning;         // what the value names in vain; empty: nothing
};

// Which of `gpus` (in PCI order) a process sees that inherited this value of CUDA_VISIBLE_DEVICES:
// a list of indices or of UUIDs, which may be cut short. As in CUDA, the first entry that names no
// GPU ends the list. `device_order` is CUDA_DEVICE_ORDER's value.
VisibleDevices PickVisibleDevices(const std::vector<v1::Gpu>& gpus, absl::string_view value,
                                  absl::string_view device_order);

}  // namespace dtrain::inventory
