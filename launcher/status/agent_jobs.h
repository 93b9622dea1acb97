// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "dtrain/v1/agent.pb.h"

// Jobs as the agents of several nodes tell of them, put together. Pure.
namespace dtrain::status {

// What one node told. `node` is its place among those asked.
struct Told {
  size_t node = 0;
  std::string host;
  v1::NodeReport report;
};

// A job's part on one node.
struct JobPart {
  size_t node = 0;
  std::string host;
  v1::JobOnNode job;
  int64_t now_unix_nanos = 0;  // of the node
};

// One attempt of a job, with its parts on the nodes that were asked, by node rank; at least one. Of
// an elastic job a node may have several, one after the other.
struct AgentJob {
  std::string id;
  std::string owner;  // the account; two users may have jobs of one id
  uint32_t attempt = 0;
  std::vector<JobPart> parts;
  // The agents tell the caller that it is there, and no more.
  bool in_name() const;
  // Something of it still runs.
  bool lives() const;
};

// Of each job its last attempt, by id and owner.
std::vector<AgentJob> JobsOf(const std::vector<Told>& told);

// The job with this name: an id, the beginning of one, or OWNER/ID. Jobs that the caller may see
// come before others. INVALID_ARGUMENT, with the names to choose from, if several jobs remain.
absl::StatusOr<std::optional<AgentJob>> Named(std::vector<AgentJob> jobs, absl::string_view name);

// For NodeJobsTable and --json.
nlohmann::ordered_json AgentJobView(const AgentJob& job);
// For JobPage.
nlohmann::ordered_json AgentJobPage(const AgentJob& job);

}  // namespace dtrain::status
