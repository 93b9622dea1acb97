// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/order.h"

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace dtrain::shepherd {

absl::StatusOr<Order> ParseOrder(absl::string_view text) {
  std::optional<uint32_t> lease_ms, agent_uid;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    uint32_t number = 0;
    if (!absl::SimpleAtoi(parts.second, &number)) continue;
    if (parts.first == "lease_ms") lease_ms = number;
    if (parts.first == "agent_uid") agent_uid = number;
  }
  if (!lease_ms || !agent_uid) {
    return absl::InvalidArgumentError(
        "descriptor 4, on which dtrain-spawner says for whom a shepherd runs, has no lease_ms and "
        "agent_uid: start jobs with dtrain launch");
  }
  return Order{std::chrono::milliseconds(*lease_ms), *agent_uid};
}

}  // namespace dtrain::shepherd
