// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/xid.h"

#include <algorithm>
#include <iterator>

namespace dtrain::job {
namespace {

struct Xid {
  uint32_t number;
  XidKind kind;
  absl::string_view meaning;
};

// NVIDIA's "XID Errors" has more; these are those that its advice to operators is about.
constexpr Xid kXids[] = {
    {13, XidKind::kProgram, "graphics engine exception"},
    {31, XidKind::kProgram, "GPU memory page fault"},
    {43, XidKind::kProgram, "GPU stopped processing"},
    {45, XidKind::kProgram, "preemptive cleanup"},
    {48, XidKind::kHardware, "double-bit ECC error"},
    {62, XidKind::kOther, "internal micro-controller halt"},
    {63, XidKind::kHardware, "memory row remapping or page retirement"},
    {64, XidKind::kHardware, "memory row remapping or page retirement failed"},
    {74, XidKind::kOther, "NVLink error"},
    {79, XidKind::kHardware, "GPU has fallen off the bus"},
    {92, XidKind::kOther, "high rate of single-bit ECC errors"},
    {94, XidKind::kHardware, "contained ECC error"},
    {95, XidKind::kHardware, "uncontained ECC error"},
    {119, XidKind::kHardware, "GSP RPC timeout"},
    {120, XidKind::kOther, "GSP error"},
};

const Xid* FindXid(uint32_t number) {
  const auto* found = std::find_if(std::begin(kXids), std::end(kXids),
                                   [number](const Xid& each) { return each.number == number; });
  return found == std::end(kXids) ? nullptr : found;
}

}  // namespace

XidKind KindOfXid(uint32_t number) {
  const Xid* xid = FindXid(number);
  return xid == nullptr ? XidKind::kOther : xid->kind;
}

absl::string_view XidMeaning(uint32_t number) {
  const Xid* xid = FindXid(number);
  return xid == nullptr ? absl::string_view() : xid->meaning;
}

}  // namespace dtrain::job
