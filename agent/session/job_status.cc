// SPDX-License-Identifier: Apache-2.0
#include "agent/session/job_status.h"

namespace dtrain::session {
namespace {

using State = SessionCore::State;

v1::JobOnNode::State StateOf(State state, bool away, bool stopping) {
  switch (state) {
    case State::kNew:
    case State::kJoined:
      return v1::JobOnNode::STATE_JOINING;
    case State::kRunning:
      if (stopping) return v1::JobOnNode::STATE_ENDING;
      return away ? v1::JobOnNode::STATE_AWAY : v1::JobOnNode::STATE_RUNNING;
    case State::kOrphaned:
    case State::kReaping:
      return v1::JobOnNode::STATE_ENDING;
    case State::kReleasing:
    case State::kFinished:
    case State::kEnded:
      return v1::JobOnNode::STATE_FINISHED;
  }
  return v1::JobOnNode::STATE_UNSPECIFIED;
}

}  // namespace

v1::JobOnNode JobStatus::View(State state, bool away) const {
  v1::JobOnNode out = job_;
  const bool stopping = stopping_ || job_.state() == v1::JobOnNode::STATE_ENDING;
  out.set_state(StateOf(state, away, stopping));
  return out;
}

}  // namespace dtrain::session
