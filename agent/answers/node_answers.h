// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "agent/auth/identity.h"
#include "agent/session/inquiries.h"
#include "common/http/message.h"

namespace dtrain::answers {

// A resident agent's answers over HTTP: about its node and the jobs there. They have the shapes of
// a launcher's, and are refused by the same rules as gRPC's. Only reads. Loop thread.
class NodeAnswers {
 public:
  // `host`: what the node calls itself. `inquiries` outlives it.
  NodeAnswers(std::string host, session::Inquiries& inquiries)
      : host_(std::move(host)), inquiries_(inquiries) {}

  // For a connection of `peer`. Outlives neither this nor its replies.
  http::AsyncHandler HandlerFor(auth::Identity peer);

 private:
  void Answer(const auth::Identity& peer, const http::Target& target, http::Reply reply);
  void AnswerJob(const auth::Identity& peer, absl::string_view route, const http::Target& target,
                 http::Reply reply);
  // `parts`, of the path: "", "v1", "jobs", ID, "ranks", RANK, "log".
  void AnswerOf(const v1::JobOnNode& job, const std::vector<std::string>& parts,
                const auth::Identity& peer, absl::string_view route, const http::Target& target,
                http::Reply reply);
  void AnswerLog(const auth::Identity& peer, absl::string_view route, const v1::JobOnNode& job,
                 uint32_t rank, const http::Target& target, http::Reply reply);

  const std::string host_;
  session::Inquiries& inquiries_;
};

}  // namespace dtrain::answers
