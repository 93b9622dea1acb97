// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agent/session/session_core.h"
#include "dtrain/v1/agent.pb.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::session {

// What there is to tell of one job's part on this node, put together from what its launcher and
// its shepherd say to each other. Pure.
class JobStatus {
 public:
  void SetPart(const v1::JobPart& part);
  void SetStopping() { stopping_ = true; }
  void FromShepherd(const v1::SessionEvent& event);
  // Of a shepherd that was taken over: who of its workers `lives` of those that it started. The
  // ends of the others were told to an agent before us, unless they are told again.
  void Adopt(const v1::Account& account, const std::vector<uint32_t>& living);

  // All but whose job it is, since when, and how much its ranks have written.
  v1::JobOnNode View(SessionCore::State state, bool away) const;

 private:
  void SetStarted(const v1::Started& started);

  v1::JobOnNode job_;  // what does not change after the start
  std::map<uint32_t, v1::RankOnNode> ranks_;
  bool stopping_ = false;
};

}  // namespace dtrain::session
