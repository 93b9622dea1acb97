// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

// Detached jobs for people. Pure but for the time zone.
namespace dtrain::history {

// `jobs`: an array as `dtrain history --json` prints it.
std::string HistoryTable(const nlohmann::ordered_json& jobs);

}  // namespace dtrain::history
