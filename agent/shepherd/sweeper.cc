// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/sweeper.h"

#include <unistd.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/os/pidfd.h"
#include "common/os/process_tree.h"

namespace dtrain::shepherd {
namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(2);
constexpr Duration kLongestPause = std::chrono::milliseconds(100);
// Without a cgroup, who leaves its group while we look is only caught by looking again at once.
constexpr int kPasses = 20;

}  // namespace

void Sweeper::KillAll() {
  if (cgroup_) cgroup_->Kill();
  for (int i = 0; i < kPasses; ++i) {
    const std::vector<os::ProcessInfo> found = Doomed();
    os::KillGroups(found);
    if (os::Kill(found) == 0 || cgroup_) return;
  }
}

void Sweeper::KillElsewhere() {
  const std::string here = os::PidNamespace();
  for (int i = 0; i < kPasses; ++i) {
    std::vector<os::ProcessInfo> found = Doomed();
    std::erase_if(found, [&here](const os::ProcessInfo& info) {
      const std::string there = os::PidNamespace(info.pid);
      return there.empty() || there == here;
    });
    if (os::Kill(found) == 0) return;
  }
}

std::vector<os::ProcessInfo> Sweeper::Doomed() const {
  std::vector<os::ProcessInfo> found = os::Descendants(getpid());
  std::erase_if(found, [this](const os::ProcessInfo& info) {
    return std::find(spared_.begin(), spared_.end(), info.pid) != spared_.end();
  });
  return found;
}

std::vector<os::ProcessInfo> Sweeper::Left() const {
  std::vector<os::ProcessInfo> found = Doomed();
  std::unordered_set<pid_t> known;
  for (const os::ProcessInfo& info : found) known.insert(info.pid);
  for (const pid_t pid : cgroup_ ? cgroup_->Processes() : std::vector<pid_t>{}) {
    if (known.contains(pid)) continue;
    if (auto info = os::FindProcess(pid)) found.push_back(*info);
  }
  std::erase_if(found, [](const os::ProcessInfo& info) { return info.state == 'Z'; });
  return found;
}

bool Sweeper::NothingLeft() const {
  if (cgroup_ && cgroup_->Populated()) return false;
  return !os::HasChildren() || Left().empty();
}

void Sweeper::Sweep(loop::Task done) {
  done_ = std::move(done);
  pause_ = kFirstPause;
  Check();
}

void Sweeper::OnReaped() {
  if (done_) Check();
}

bool Sweeper::AllGone() const { return !os::HasChildren() && !(cgroup_ && cgroup_->Populated()); }

void Sweeper::Check() {
  if (AllGone()) {
    timer_.Cancel();
    std::exchange(done_, nullptr)();
    return;
  }
  KillAll();
  timer_.After(pause_, [this] { Check(); });
  pause_ = std::min(pause_ * 2, kLongestPause);
}

std::string Sweeper::GiveUp() {
  timer_.Cancel();
  done_ = nullptr;
  std::string out;
  auto add = [&](pid_t pid, char state) {
    absl::StrAppend(&out, out.empty() ? "" : ", ", "pid ", pid);
    if (state != '?')
      absl::StrAppend(&out, " (state ", std::string(1, state), ", in ", os::WaitChannel(pid), ")");
  };
  std::vector<pid_t> named;
  for (const os::ProcessInfo& info : os::Descendants(getpid())) {
    if (info.state == 'Z') continue;
    add(info.pid, info.state);
    named.push_back(info.pid);
  }
  for (pid_t pid : cgroup_ ? cgroup_->Processes() : std::vector<pid_t>{}) {
    if (std::find(named.begin(), named.end(), pid) == named.end()) add(pid, '?');
  }
  return out;
}

void Sweeper::RemoveCgroup() {
  if (!cgroup_) return;
  absl::Status removed = cgroup_->Remove();
  if (!removed.ok()) log::Warn(std::string(removed.message()));
}

}  // namespace dtrain::shepherd
