// SPDX-License-Identifier: Apache-2.0
// The value of --hosts and, behind a line feed, of --include and --exclude; the two as a Slurm
// job's node list and its task counts.
#include <optional>
#include <string>

#include "launcher/hosts/allocation.h"
#include "launcher/hosts/host_filter.h"
#include "launcher/hosts/hostfile.h"
#include "tests/fuzz/expect.h"

namespace {

void ExpectSound(const absl::StatusOr<dtrain::hosts::HostList>& list) {
  if (!list.ok()) {
    dtrain::fuzz::ExpectPrintable(list.status());
    return;
  }
  DTRAIN_CHECK(!list->entries.empty() && list->entries.size() <= dtrain::hosts::kMaxHosts);
  for (const auto& entry : list->entries) {
    DTRAIN_CHECK(dtrain::hosts::CheckHostName(entry.host).ok());
    DTRAIN_CHECK(!entry.slots || (*entry.slots > 0 && *entry.slots <= dtrain::hosts::kMaxSlots));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  absl::string_view text = dtrain::fuzz::Text(data, size);
  size_t end = text.find('\n');
  absl::string_view first = text.substr(0, end);
  absl::string_view second = end == absl::string_view::npos ? "" : text.substr(end + 1);
  const auto list = dtrain::hosts::ParseHostList(first);
  ExpectSound(list);
  if (list.ok()) {
    ExpectSound(dtrain::hosts::IncludeHosts(*list, second));
    ExpectSound(dtrain::hosts::ExcludeHosts(*list, second));
  }

  auto environment = [&](const std::string& name) -> std::optional<std::string> {
    if (name == "SLURM_JOB_ID") return "1";
    if (name == "SLURM_JOB_NODELIST") return std::string(first);
    if (name == "SLURM_TASKS_PER_NODE") return std::string(second);
    return std::nullopt;
  };
  auto no_files = [](const std::string&) -> absl::StatusOr<std::string> {
    return absl::NotFoundError("none");
  };
  auto slurm = dtrain::hosts::DetectAllocation(environment, no_files);
  if (slurm.ok()) {
    ExpectSound((*slurm)->hosts);
  } else {
    ExpectSound(slurm.status());
  }
  return 0;
}
