// SPDX-License-Identifier: Apache-2.0
#include "agent/inventory/visible_devices.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/text.h"

namespace dtrain::inventory {
namespace {

bool IsIndex(absl::string_view entry) {
  return !entry.empty() && std::all_of(entry.begin(), entry.end(), absl::ascii_isdigit);
}

std::optional<size_t> FindGpu(const std::vector<v1::Gpu>& gpus, absl::string_view entry) {
  if (IsIndex(entry)) {
    size_t index = 0;
    if (!absl::SimpleAtoi(entry, &index) || index >= gpus.size()) return std::nullopt;
    return index;
  }
  if (!absl::StartsWith(entry, "GPU-")) return std::nullopt;
  std::optional<size_t> found;
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (!absl::StartsWith(gpus[i].uuid(), entry)) continue;
    if (found) return std::nullopt;  // ambiguous
    found = i;
  }
  return found;
}

// How people say "none" on purpose.
bool MeansNone(absl::string_view entry) {
  return entry.empty() || entry == "-1" || entry == "NoDevFiles" || entry == "none" ||
         entry == "void";
}

std::string NamedInVain(absl::string_view entry, bool first) {
  std::string out = absl::StrCat("CUDA_VISIBLE_DEVICES is set on this node, and its entry '",
                                 Escape(entry), "' ");
  absl::StrAppend(&out, absl::StartsWith(entry, "MIG-")
                            ? "is a MIG instance, on which dtrain places no workers"
                            : "names no GPU here");
  absl::StrAppend(&out, first ? ": name GPUs by number or UUID there, or unset it"
                              : "; it and the entries after it are ignored");
  return out;
}

bool AllAlike(const std::vector<v1::Gpu>& gpus) {
  return std::all_of(gpus.begin(), gpus.end(),
                     [&](const v1::Gpu& gpu) { return gpu.name() == gpus[0].name(); });
}

}  // namespace

VisibleDevices PickVisibleDevices(const std::vector<v1::Gpu>& gpus, absl::string_view value,
                                  absl::string_view device_order) {
  VisibleDevices out;
  bool by_index = false;
  bool first = true;
  for (absl::string_view part : absl::StrSplit(value, ',')) {
    absl::string_view entry = absl::StripAsciiWhitespace(part);
    std::optional<size_t> found = FindGpu(gpus, entry);
    if (!found) {
      if (!gpus.empty() && !MeansNone(entry)) out.warning = NamedInVain(entry, first);
      break;
    }
    by_index = by_index || IsIndex(entry);
    if (std::find(out.picked.begin(), out.picked.end(), *found) == out.picked.end()) {
      out.picked.push_back(*found);
    }
    first = false;
  }
  // CUDA then counts the fastest GPU as 0, by a measure that is its own.
  if (out.warning.empty() && by_index && device_order != "PCI_BUS_ID" && !AllAlike(gpus)) {
    out.warning =
        "CUDA_VISIBLE_DEVICES is set on this node by number, and its GPUs are of different kinds: "
        "dtrain counts them in PCI order; set CUDA_DEVICE_ORDER=PCI_BUS_ID too, or name UUIDs";
  }
  return out;
}

}  // namespace dtrain::inventory
