// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

// The answers of the status server as tables for people, and the cells of these. Pure. What is
// missing or of another type in an answer is shown as a dash: a launcher of another version may
// have sent it.

namespace dtrain::status {

using Row = std::vector<std::string>;

// The member, or null.
const nlohmann::ordered_json& At(const nlohmann::ordered_json& json, const char* key);
std::string Text(const nlohmann::ordered_json& json, size_t limit = 60);
double Number(const nlohmann::ordered_json& json);
// "12 s", "3 min 20 s", "2 h 5 min", "3 d 2 h".
std::string Age(double seconds);
// Columns as wide as their widest text, two spaces apart; none after the last.
std::string Align(const std::vector<Row>& rows);

// `jobs`: an array of /v1/jobs/{id}. `all`: also who supervises them.
std::string JobsTable(const nlohmann::ordered_json& jobs, bool all = false);

// Who starts the launcher of a detached job again, "nobody"; and how often that was done, if it
// was.
std::string SupervisorOf(const nlohmann::ordered_json& job);
std::string RestartsOf(const nlohmann::ordered_json& job);

// `jobs`: likewise, put together from what agents tell; `on` is a text.
std::string NodeJobsTable(const nlohmann::ordered_json& jobs);

// `nodes`: as `dtrain nodes --json` prints them.
std::string NodesPage(const nlohmann::ordered_json& nodes);

// `all`: {"job": /v1/jobs/{id}, "ranks": [...], "nodes": [...]}.
std::string JobPage(const nlohmann::ordered_json& all);

// `story`: a detached job as story::Tell tells it. Times are in this machine's zone.
std::string StoryPage(const nlohmann::ordered_json& story);

}  // namespace dtrain::status
