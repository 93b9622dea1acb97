// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/retries.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "launcher/job/outcome.h"
#include "rendezvous/barrier_core.h"

namespace dtrain::job {
namespace {

// Where no line is redrawn, people read that hosts are waited for once this has passed.
constexpr Duration kTellAfter = std::chrono::seconds(2);

}  // namespace

void Retries::OnPhase(NodeId node) {
  if (began_[node.value()] == TimePoint()) began_[node.value()] = cluster_.now();
}

TimePoint Retries::Until(NodeId node) const {
  const JobOptions& options = cluster_.options();
  const TimePoint launched = cluster_.phases().front().begin;
  const TimePoint began = began_[node.value()];
  return After(options.retry_each && began != TimePoint() ? began : launched, options.retry_for);
}

bool Retries::TryAgain(NodeId node, const std::string& why, const std::string& passes,
                       int exit_code) {
  if (cluster_.options().retry_for <= Duration::zero()) return false;
  const auto [at, fresh] = waiting_.try_emplace(node);
  Waiting& waiting = at->second;
  if (fresh) waiting.until = Until(node);
  until_.emplace(waiting.until, node);
  waiting.why = why;
  waiting.passes = passes;
  waiting.exit_code = exit_code;
  ++waiting.tries;
  if (cluster_.now() >= waiting.until) return false;
  cluster_.SetWaitingFor(
      node, absl::StrCat(passes, ", ", waiting.tries, waiting.tries == 1 ? " try" : " tries"));
  out_.Add(ConnectAgain{node, waiting.tries});
  if (fresh) tell_at_ = std::min(tell_at_, cluster_.now() + kTellAfter);
  return true;
}

void Retries::OnConnected(NodeId node) {
  const auto at = waiting_.find(node);
  if (at != waiting_.end()) until_.erase({at->second.until, node});
}

void Retries::Forget(NodeId node) {
  const auto at = waiting_.find(node);
  if (at == waiting_.end()) return;
  until_.erase({at->second.until, node});
  waiting_.erase(at);
}

const char* Retries::flag() const {
  return cluster_.options().retry_each ? "--connect-timeout; --start-timeout allows more"
                                       : "--start-timeout";
}

std::string Retries::Why(NodeId node) const {
  const Waiting& waiting = waiting_.at(node);
  // The first try may have used up all the time that there was.
  if (waiting.tries < 2) return waiting.why;
  return absl::StrCat(waiting.why, "; still so after ", FormatSeconds(cluster_.options().retry_for),
                      " (", flag(), ")");
}

void Retries::AddTo(FaultList& faults) const {
  for (const auto& [node, waiting] : waiting_) faults.Add(node, waiting.why, waiting.exit_code);
}

std::vector<NodeId> Retries::Due() const {
  std::vector<NodeId> due;
  for (const auto& [until, node] : until_) {
    if (until > cluster_.now()) break;
    due.push_back(node);
  }
  return due;
}

TimePoint Retries::NextDeadline() const {
  if (cluster_.state() != State::kConnecting) return kNever;
  return until_.empty() ? tell_at_ : std::min(until_.begin()->first, tell_at_);
}

void Retries::OnDeadline() {
  if (cluster_.state() == State::kConnecting && cluster_.now() >= tell_at_) Tell();
}

void Retries::Tell() {
  tell_at_ = kNever;
  std::map<std::string, std::vector<std::string>> hosts;  // by cause
  for (auto& [node, waiting] : waiting_) {
    if (!std::exchange(waiting.told, true)) hosts[waiting.passes].push_back(cluster_.host(node));
  }
  for (const auto& [passes, names] : hosts) {
    out_.Warn(absl::StrCat("waiting for ", rendezvous::FormatHosts(names), ": ", passes,
                           "; trying again, for up to ",
                           FormatSeconds(cluster_.options().retry_for), " (", flag(), ")"));
  }
}

}  // namespace dtrain::job
