// SPDX-License-Identifier: Apache-2.0
#include "launcher/detaching.h"

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "launcher/campaign_of.h"
#include "launcher/job_end.h"
#include "launcher/present_job.h"

namespace dtrain {

Detaching::Detaching(PreparedLaunch& launch, CampaignRun& campaign, std::unique_ptr<v1::Spec> spec)
    : launch_(launch), campaign_(campaign), spec_(std::move(spec)), patience_(launch.loop()) {}

absl::Status Detaching::May() const {
  if (spec_ == nullptr) {
    return absl::FailedPreconditionError("only what `dtrain launch` has started can be detached");
  }
  if (IsElastic(launch_.options())) {
    return absl::FailedPreconditionError("a job with --elastic ends with its launcher");
  }
  if (!campaign_.workers_run()) {
    return absl::FailedPreconditionError(
        "its workers do not run: it starts, is between two attempts, or is about to end");
  }
  std::vector<std::string> bound;
  for (const job::NodeView& node : campaign_.attempt().now().facts().nodes) {
    if (!node.resumable && !node.gone && !node.spare) bound.push_back(node.host);
  }
  if (!bound.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no resident agent has its workers on ", bound.front(),
        bound.size() > 1 ? absl::StrCat(" and ", Count(bound.size() - 1, "other host")) : "",
        ", so that they end with the launcher: launch it with -d instead"));
  }
  return absl::OkStatus();
}

void Detaching::Ask(absl::AnyInvocable<void(absl::Status)> may) {
  if (absl::Status now = May(); !now.ok()) return may(now);
  Handover::CheckBeside(launch_.loop(), std::move(may));
}

absl::Status Detaching::Detach(const status::LogTails& shown) {
  if (const absl::Status may = May(); !may.ok()) return may;
  const PresentAttempt& attempt = campaign_.attempt();
  PresentJob now{*spec_,
                 launch_.options(),
                 launch_.clock(),
                 campaign_.core(),
                 *attempt.fixed(),
                 {},
                 shown,
                 launch_.code(),
                 MayRestart(launch_.options())};
  for (const hosts::HostEntry& host : attempt.hosts()) now.attempt_hosts.push_back(host.host);
  auto made = Handover::Make(ToHandOver(now, launch_.loop().Now()));
  if (!made.ok()) return made.status();
  handover_ = *std::move(made);
  // Whoever has the job next asks its nodes what came.
  campaign_.LetGo();
  return absl::OkStatus();
}

void Detaching::LeaveLoop() {
  const auto leave = [this] { launch_.loop().Stop(); };
  patience_.After(kOutputWait, leave);
  launch_.router().Finish(leave);
}

}  // namespace dtrain
