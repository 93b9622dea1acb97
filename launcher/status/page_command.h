// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/http/message.h"
#include "common/loop/loop.h"
#include "launcher/nodes/agents.h"
#include "launcher/status/ended_job.h"
#include "launcher/status/node_watch.h"
#include "launcher/status/runtime_dir.h"

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

// Serves the page about that job on loopback (`listen` as ParseListening takes it), with a token of
// its own, and passes the page's questions to the job's launcher, until a signal ends it. Prints
// the link, which has the token, to a terminal only; with `open` it is in a file that only this
// user can read, which a browser is told to open: command lines are for everybody to see.
absl::Status ServePage(const LiveJob& job, const std::string& listen, bool open);
// Likewise, with the answers that are in the folder of a job that has ended.
absl::Status ServePage(const EndedJob& job, const std::string& listen, bool open);
// Likewise about a node, with what its agent tells.
absl::Status ServePage(NodePage& node, const std::string& listen, bool open);

}  // namespace dtrain::status
