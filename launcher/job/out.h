// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "launcher/job/job_core.h"

namespace dtrain::job {

// What the phases want done, until JobCore hands it out.
class Out {
 public:
  void Add(Action action) { actions_.push_back(std::move(action)); }
  // To be filled in before anything else is asked for.
  v1::SessionRequest& ToAgent(NodeId node);
  v1::JobRequest& ToShepherd(NodeId node, std::shared_ptr<const v1::JobPart> common = nullptr);
  // To none: nothing.
  void ToAgents(std::vector<NodeId> nodes, v1::SessionRequest request);
  void ToShepherds(std::vector<NodeId> nodes, v1::JobRequest request);
  void Warn(std::string text, bool detail = false);

  std::vector<Action> Take() { return std::exchange(actions_, {}); }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  std::vector<Action> actions_;
  std::vector<std::string> warnings_;
};

}  // namespace dtrain::job
