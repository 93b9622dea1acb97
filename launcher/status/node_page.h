// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/http/message.h"
#include "common/loop/loop.h"
#include "launcher/nodes/agents.h"
#include "launcher/status/node_watch.h"

namespace dtrain::status {

// Answers the page of a node: /v1/node, with what its agent tells. Each question waits for the
// agent for a moment; then it is answered with what there is. Loop thread, that of the agents.
class NodePage {
 public:
  // Of the only host of `agents`.
  explicit NodePage(std::unique_ptr<nodes::Agents> agents);

  loop::Loop& loop() { return agents_->loop(); }
  const std::string& host() const { return agents_->host(0); }
  void Answer(const http::Target& target, http::Reply reply);

 private:
  void Ask();
  void AnswerAll();
  http::Response Now() const;

  const std::unique_ptr<nodes::Agents> agents_;
  NodeWatch watch_;
  std::vector<http::Reply> waiting_;
  loop::Timer patience_;
};

}  // namespace dtrain::status
