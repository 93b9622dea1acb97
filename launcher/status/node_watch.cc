// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/node_watch.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "launcher/nodes/agents.h"
#include "launcher/status/node_json.h"

namespace dtrain::status {
namespace {

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

bool NodeWatch::OnLook(TimePoint now) {
  if (asking_ || now < next_at_) return false;
  asking_ = true;
  asked_at_ = now;
  return true;
}

bool NodeWatch::OnAnswer(TimePoint now, absl::StatusOr<v1::NodeReport> answer) {
  asking_ = false;
  if (!answer.ok()) {
    without_agent_since_.reset();
    OnFailure(now, answer.status());
    return true;
  }
  const bool resident = nodes::Agents::IsResident(*answer);
  if (!resident && report_ && nodes::Agents::IsResident(*report_)) {
    // Someone else has answered, who knows of no jobs. They run on without their agent.
    OnFailure(now, absl::UnavailableError("the resident agent there no longer answers"));
    return true;
  }
  report_ = *std::move(answer);
  heard_at_ = now;
  failure_ = absl::OkStatus();
  failures_ = 0;
  next_at_ = asked_at_ + kPause;
  if (resident) {
    without_agent_since_.reset();
    return false;
  }
  if (!without_agent_since_) without_agent_since_ = now;
  if (now - *without_agent_since_ < kLookForAgent) return false;
  without_agent_since_.reset();
  return true;
}

// After 1 s, 2 s, 4 s, 8 s, 15 s, 15 s ...
void NodeWatch::OnFailure(TimePoint now, absl::Status why) {
  failure_ = std::move(why);
  next_at_ = now + std::min<Duration>(kPause * (1 << std::min(failures_, 8)), kLongestPause);
  ++failures_;
}

nlohmann::ordered_json NodeWatch::View(TimePoint now) const {
  nlohmann::ordered_json view = NodeJson(host_, *report_);
  view["age_s"] = Seconds(now - heard_at_);
  if (!failure_.ok()) {
    view["no_answer"] = {{"why", std::string(failure_.message())},
                         {"retry_s", Seconds(std::max(next_at_ - now, Duration::zero()))}};
  }
  return view;
}

}  // namespace dtrain::status
