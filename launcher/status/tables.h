// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

// The answers of the status server for people. Pure. What is missing or of another type in an
// answer is shown as a dash: it may come from a launcher of another version.
namespace dtrain::status {

// `jobs`: an array of /v1/jobs/{id}.
std::string JobsTable(const nlohmann::ordered_json& jobs);

// `jobs`: likewise, put together from what agents tell; `on` is a text.
std::string NodeJobsTable(const nlohmann::ordered_json& jobs);

// `nodes`: as `dtrain nodes --json` prints them.
std::string NodesPage(const nlohmann::ordered_json& nodes);

// `all`: {"job": /v1/jobs/{id}, "ranks": [...], "nodes": [...]}.
std::string JobPage(const nlohmann::ordered_json& all);

}  // namespace dtrain::status
