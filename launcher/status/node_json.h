// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "dtrain/v1/agent.pb.h"

namespace dtrain::status {

// A node as `dtrain nodes --json` prints it and its page shows it: "state" ("ok", "no agent",
// "quarantined", "unreachable"), "why" it is not ok, and all that its agent has told. Pure.
nlohmann::ordered_json NodeJson(const std::string& host,
                                const absl::StatusOr<v1::NodeReport>& answer);

}  // namespace dtrain::status
