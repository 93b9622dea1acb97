// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace dtrain::job {

// What an error number of NVIDIA's driver (Xid) says of the GPU.
enum class XidKind {
  kHardware,  // it, or its firmware, is not to be relied on before a reset, a reboot or a repair
  kProgram,   // mostly the error of a program, or what follows one
  kOther,
};
XidKind KindOfXid(uint32_t number);

// "GPU has fallen off the bus"; empty: not known here.
absl::string_view XidMeaning(uint32_t number);

}  // namespace dtrain::job
