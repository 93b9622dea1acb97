// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "dtrain/v1/agent.pb.h"

// What a resident agent tells of its node and the jobs there, as programs see it: over HTTP and
// from `dtrain nodes --json`. docs/api.md is the description. Pure. Strings may hold any bytes.
namespace dtrain::view {

// "joining", "running", "away", "ending", "finished"
const char* StateName(v1::JobOnNode::State state);

// `now_unix_nanos`: the node's clock, of the report.
nlohmann::ordered_json JobView(const v1::JobOnNode& job, const std::string& host,
                               int64_t now_unix_nanos);
nlohmann::ordered_json RankView(const v1::RankOnNode& rank, const std::string& host);
// `host`: as who asks calls it.
nlohmann::ordered_json NodeView(const v1::NodeReport& report, const std::string& host);

}  // namespace dtrain::view
