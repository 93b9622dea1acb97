// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "agent/session/session_core.h"
#include "dtrain/v1/agent.pb.h"

namespace dtrain::session {

// What there is to tell of one job's part on this node: what its shepherd reports, and how far its
// session is. Pure.
class JobStatus {
 public:
  void Set(v1::JobOnNode reported) { job_ = std::move(reported); }
  void SetStopping() { stopping_ = true; }
  // It has come to the shepherd, which can answer for it to another agent.
  bool has_part() const { return job_.ranks_size() > 0; }

  // All but whose job it is, and since when.
  v1::JobOnNode View(SessionCore::State state, bool away) const;

 private:
  v1::JobOnNode job_;
  bool stopping_ = false;
};

}  // namespace dtrain::session
