// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/meeting_look.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "common/os/process_sockets.h"
#include "common/os/process_tree.h"

namespace dtrain::shepherd {
namespace {

constexpr Duration kLookEvery = std::chrono::seconds(8);
// Those that have met do not come back to this.
constexpr Duration kLookUntil = std::chrono::minutes(30);
// A rank whose peer on this host is late does the same, for a while.
constexpr int kLooksToTell = 3;
constexpr size_t kMostBelow = 16;  // processes of a rank
constexpr size_t kMostNamedRanks = 8;

}  // namespace

// On rank 0's node its neighbours may wait for it just so.
void MeetingLook::Begin() {
  const bool has_rank_0 = std::any_of(part_.workers().begin(), part_.workers().end(),
                                      [](const auto& worker) { return worker.rank() == 0; });
  if (has_rank_0 || part_.node_count() < 2 || part_.has_elastic()) return;
  begun_ = workers_.started_at();
  timer_.After(kLookEvery, [this] { Look(); });
}

void MeetingLook::Look() {
  if (core_.state() != State::kRunning) return;
  std::vector<uint32_t> in_vain;
  bool all = true;
  for (const auto& worker : workers_.all()) {
    if (worker->ended()) {
      all = false;
      continue;
    }
    LookAt(worker->rank(), worker->pid());
    const bool tries = tries_[worker->rank()].looks >= kLooksToTell;
    if (tries) in_vain.push_back(worker->rank());
    all &= tries;
    if (!tries) break;  // it may be the one for which the others wait
  }
  if (all && !in_vain.empty()) return Tell(in_vain);
  if (Clock::now() - begun_ < kLookUntil) timer_.After(kLookEvery, [this] { Look(); });
}

void MeetingLook::LookAt(uint32_t rank, pid_t process) {
  Tries& tries = tries_[rank];
  std::vector<pid_t> processes = {process};
  const std::vector<os::ProcessInfo> below = os::Descendants(process);
  for (size_t i = 0; i < std::min(below.size(), kMostBelow); ++i) processes.push_back(below[i].pid);
  for (const pid_t each : processes) {
    const auto port = os::FailedLoopbackConnect(each);
    if (!port) continue;
    const bool again = each == tries.process && *port != tries.port;
    tries = {each, *port, again ? tries.looks + 1 : std::max(tries.looks, 1)};
    return;
  }
  tries = {};
}

void MeetingLook::Tell(const std::vector<uint32_t>& ranks) {
  const pid_t process = tries_[ranks[0]].process;
  const auto address = os::VariableSetByItself(process, "MASTER_ADDR");
  const auto port = os::VariableSetByItself(process, "MASTER_PORT");
  const std::vector<uint32_t> named(ranks.begin(),
                                    ranks.begin() + std::min(ranks.size(), kMostNamedRanks));
  const std::string ours =
      absl::StrCat(part_.network().master_address(), ":", part_.network().master_port());
  launcher_.Warn(absl::StrCat(
      ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(named, ", "),
      ranks.size() > named.size() ? absl::StrCat(" and ", ranks.size() - named.size(), " more")
                                  : "",
      ranks.size() == 1 ? " waits" : " wait", " to connect to 127.0.0.1",
      port ? absl::StrCat(":", Escape(*port, 16)) : "", " on ", part_.host(),
      ", where nobody listens; ",
      address ? absl::StrCat("MASTER_ADDR was set to ", Escape(*address, 64), " by the program")
              : "the program looks for rank 0 on its own machine",
      ": leave MASTER_ADDR and MASTER_PORT as dtrain sets them (", ours, ")"));
}

}  // namespace dtrain::shepherd
