// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/node_json.h"

#include <nlohmann/json.hpp>

#include "common/view/node_view.h"
#include "launcher/nodes/agents.h"

namespace dtrain::status {

nlohmann::ordered_json NodeJson(const std::string& host,
                                const absl::StatusOr<v1::NodeReport>& answer) {
  nlohmann::ordered_json node = {{"host", host}};
  if (!answer.ok()) {
    node["state"] = "unreachable";
    node["why"] = std::string(answer.status().message());
    return node;
  }
  const bool resident = nodes::Agents::IsResident(*answer);
  const std::string& quarantine = answer->quarantine();
  node["state"] = !resident ? "no agent" : quarantine.empty() ? "ok" : "quarantined";
  if (!quarantine.empty()) {
    node["why"] = quarantine;
  } else if (!resident) {
    node["why"] = "no resident agent of this build runs there; the node was queried without one";
  }
  node.update(view::NodeView(*answer, host));
  return node;
}

}  // namespace dtrain::status
