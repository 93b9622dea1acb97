// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/outcome.h"

#include <algorithm>
#include <csignal>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"

namespace dtrain::job {
namespace {

constexpr size_t kMaxText = 4000;  // of one node's part of it

// No message is that late: its node would have been given up. So its clock was set.
constexpr int64_t kClockStep = int64_t{600} * 1'000'000'000;

// Of what nodes say: any numbers there may be.
int64_t Difference(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}

int64_t Sum(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

bool IsStep(int64_t nanos) { return nanos > kClockStep || nanos < -kClockStep; }

}  // namespace

int WorkerExitCode(const v1::WorkerExit& exit) {
  int code = 0;
  if (exit.aborted()) {
    code = exit.abort_code() & 0xff;
  } else if (exit.signal() != 0) {
    code = kExitSignalBase + (exit.signal() & 0x7f);
  } else {
    code = exit.exit_code() & 0xff;
  }
  return code == 0 ? 1 : code;
}

int FailureExitCode(const v1::NodeFailure& failure) {
  if (failure.exit_code() > 0 && failure.exit_code() < 256) return failure.exit_code();
  switch (failure.kind()) {
    case v1::NodeFailure::KIND_SPAWN:
      return kExitNotExecutable;
    case v1::NodeFailure::KIND_SHEPHERD_LOST:
      return kExitAgentLost;
    case v1::NodeFailure::KIND_STATE:
      return kExitState;
    case v1::NodeFailure::KIND_CLEANUP:
      return kExitCleanup;
    default:
      return kExitStartAgents;
  }
}

std::string SignalName(int signal) {
  switch (signal) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    case SIGPIPE:
      return "SIGPIPE";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGUSR2:
      return "SIGUSR2";
    default:
      return absl::StrCat("signal ", signal);
  }
}

std::string EndedBy(int signal, absl::string_view from) {
  if (absl::StartsWith(from, kStopCommand)) return absl::StrCat("stopped by ", from);
  return absl::StrCat("ended by ", SignalName(signal), from.empty() ? "" : ", sent by ", from);
}

std::string FormatSeconds(std::chrono::nanoseconds duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  return seconds < 10 ? absl::StrFormat("%.3g s", seconds) : absl::StrFormat("%.0f s", seconds);
}

std::string Printable(absl::string_view text) {
  std::string out;
  size_t begin = 0;
  while (true) {
    const size_t end = std::min(text.find_first_of("\\\n", begin), text.size());
    out += Escape(text.substr(begin, end - begin), kMaxText);
    if (end == text.size() || out.size() >= kMaxText) return out;
    out += text[end] == '\\' ? "\\" : "\n      ";
    begin = end + 1;
  }
}

void NodeClock::Add(int64_t node_unix_nanos, int64_t our_unix_nanos) {
  if (node_unix_nanos == 0 || our_unix_nanos == 0) return;
  const int64_t offset = Difference(node_unix_nanos, our_unix_nanos);
  if (count_ > 0 && IsStep(Difference(offset, ahead_nanos()))) {
    stepped_ = Sum(stepped_, Difference(offset, ahead_nanos()));
    count_ = 0;
  }
  offsets_[count_++ % offsets_.size()] = offset;
}

int64_t NodeClock::ahead_at_start_nanos() const { return Difference(ahead_nanos(), stepped_); }

int64_t NodeClock::ahead_nanos() const {
  if (count_ == 0) return 0;
  const auto end = offsets_.begin() + static_cast<long>(std::min(count_, offsets_.size()));
  return *std::max_element(offsets_.begin(), end);
}

int64_t NodeClock::ToOurs(int64_t node_unix_nanos, int64_t received) const {
  if (count_ == 0) return received;
  const int64_t ours = Difference(node_unix_nanos, ahead_nanos());
  if (received == 0) return ours;
  // Its clock was set since the last beat: nobody hears of what happened that long ago.
  return IsStep(Difference(received, ours)) ? received : std::min(ours, received);
}

namespace {

// Kept for the result file; more than a person reads.
constexpr size_t kMostWarnings = 1000;

}  // namespace

v1::SessionRequest& Out::ToAgent(NodeId node) {
  actions_.emplace_back(job::ToAgent{node, {}});
  return std::get<job::ToAgent>(actions_.back()).request;
}

v1::JobRequest& Out::ToShepherd(NodeId node, std::shared_ptr<const v1::JobPart> common) {
  actions_.emplace_back(job::ToShepherd{node, {}, std::move(common)});
  return std::get<job::ToShepherd>(actions_.back()).request;
}

void Out::ToAgents(std::vector<NodeId> nodes, v1::SessionRequest request) {
  if (nodes.empty()) return;
  actions_.emplace_back(job::ToAgents{std::move(nodes), std::move(request)});
}

void Out::ToShepherds(std::vector<NodeId> nodes, v1::JobRequest request) {
  if (nodes.empty()) return;
  actions_.emplace_back(job::ToShepherds{std::move(nodes), std::move(request)});
}

void Out::Warn(std::string text, bool detail) {
  if (warnings_.size() < kMostWarnings) warnings_.push_back(text);
  actions_.emplace_back(job::Warn{std::move(text), detail});
}

}  // namespace dtrain::job
