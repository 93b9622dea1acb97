// SPDX-License-Identifier: Apache-2.0
#include "launcher/detaching.h"

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/text.h"
#include "launcher/campaign_of.h"
#include "launcher/job_end.h"
#include "launcher/present_job.h"

namespace dtrain {
namespace {

// `dtrain detach` waits for 15 s: for the folder of detached jobs, then for nodes without a
// resident agent.
constexpr Duration kFolderPatience = std::chrono::seconds(8);
constexpr Duration kNodesPatience = std::chrono::seconds(6);

}  // namespace

Detaching::Detaching(PreparedLaunch& launch, CampaignRun& campaign, std::unique_ptr<v1::Spec> spec)
    : launch_(launch),
      campaign_(campaign),
      spec_(std::move(spec)),
      check_(launch.loop()),
      nodes_timer_(launch.loop()),
      patience_(launch.loop()) {}

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
  return absl::OkStatus();
}

void Detaching::Ask(absl::AnyInvocable<void(absl::Status)> may) {
  if (absl::Status now = May(); !now.ok()) return may(now);
  askers_.push_back(std::move(may));
  if (askers_.size() > 1) return;
  // A folder that stalls delays the answer, but never the job.
  check_.Make(
      "try the state folder", [] { return Handover::Check(); }, kFolderPatience,
      absl::UnavailableError("the folder of detached jobs, below your home or "
                             "XDG_STATE_HOME, does not answer: try again when it does"),
      [this](const absl::Status& found) { found.ok() ? KeepOnNodes() : Answer(found); });
}

// Agents that live no longer than our connections to them.
void Detaching::KeepOnNodes() {
  if (absl::Status now = May(); !now.ok()) return Answer(now);
  const report::JobFacts facts = campaign_.attempt().now().facts();
  unkept_.clear();
  attempt_ = Attempt();
  for (size_t i = 0; i < facts.nodes.size(); ++i) {
    const job::NodeView& node = facts.nodes[i];
    if (node.resumable || node.gone || node.spare) continue;
    unkept_.insert(NodeId(static_cast<uint32_t>(i)));
  }
  if (unkept_.empty()) return Answer(absl::OkStatus());
  nodes_timer_.After(kNodesPatience, [this] { OnNodesLate(); });
  campaign_.attempt().Keep(
      {unkept_.begin(), unkept_.end()},
      [this](NodeId node, const std::string& refused) { OnKept(node, refused); });
}

void Detaching::OnKept(NodeId node, const std::string& refused) {
  if (unkept_.erase(node) == 0 || askers_.empty()) return;
  if (!refused.empty()) {
    return Answer(absl::FailedPreconditionError(
        absl::StrCat("its workers on ", HostOf(node), " would not outlive its launcher: ", refused,
                     "; install the resident agent there (docs/operations.md)")));
  }
  if (unkept_.empty()) Answer(absl::OkStatus());
}

void Detaching::OnNodesLate() {
  if (absl::Status now = May(); !now.ok()) return Answer(now);
  const size_t others = unkept_.size() - 1;
  Answer(absl::UnavailableError(absl::StrCat(
      HostOf(*unkept_.begin()),
      others > 0 ? absl::StrCat(" and ", Count(others, "other host")) : "", " did not say within ",
      absl::ToInt64Seconds(absl::FromChrono(kNodesPatience)),
      " s that the workers there may outlive the launcher, or output from there is not read here: "
      "try again")));
}

// Posted: what answers a node's word may end the connection that it came by.
void Detaching::Answer(const absl::Status& may) {
  nodes_timer_.Cancel();
  unkept_.clear();  // a word that comes later answers no later question
  launch_.loop().Post([may, askers = std::exchange(askers_, {})]() mutable {
    for (auto& asker : askers) asker(may);
  });
}

const std::string& Detaching::HostOf(NodeId node) const {
  return report::HostOf(campaign_.attempt().now().facts(), node);
}

absl::Status Detaching::Detach(const status::LogTails& shown) {
  if (const absl::Status may = May(); !may.ok()) return may;
  if (Attempt() != attempt_) return absl::UnavailableError("it was restarted meanwhile: try again");
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
