// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/agent_report.h"

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

}  // namespace dtrain::shepherd
