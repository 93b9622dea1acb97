// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/agent_report.h"

#include <utility>

namespace dtrain::shepherd {
namespace {

constexpr Duration kReportEvery = std::chrono::seconds(1);

}  // namespace

void AgentReport::Tell() {
  due_.Cancel();
  told_at_ = loop_.Now();
  job_.SetTold();
  v1::ShepherdEvent event;
  *event.mutable_report() = job_.report();
  line_.Tell(event);
}

void AgentReport::TellLater() {
  if (!job_.changed()) return;
  due_.At(told_at_ + kReportEvery, [this] { TellRest(); });
}

void AgentReport::TellRest() {
  if (job_.changed()) Tell();
}

void AgentReport::TellEnded(v1::Finished ended) {
  ended_ = std::move(ended);
  v1::ShepherdEvent event;
  *event.mutable_ended() = *ended_;
  line_.Tell(event);
}

void AgentReport::TellAccount() {
  v1::ShepherdEvent event;
  v1::Account& account = *event.mutable_account();
  *account.mutable_kept() = *line_.kept();
  *account.mutable_report() = job_.report();
  account.set_finished(ended_.has_value());
  line_.Tell(event);
  if (ended_) TellEnded(*std::move(ended_));
}

}  // namespace dtrain::shepherd
