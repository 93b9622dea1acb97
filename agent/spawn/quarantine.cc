// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/quarantine.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/os/fd.h"

namespace dtrain::spawn {
namespace {

constexpr size_t kMostNamed = 3;
// For a process that got SIGKILL to end: it gives its memory back first.
constexpr Duration kBound = std::chrono::seconds(2);

bool Ended(pid_t pid, uint64_t start_time) {
  const auto process = os::FindProcess(pid);
  return !process || process->start_time != start_time || process->state == 'Z';
}

}  // namespace

size_t Quarantine::Kill(TimePoint now, const std::string& job_id, const Owner& owner,
                        const std::vector<os::ProcessInfo>& processes) {
  const size_t living = os::Kill(processes);
  Killed(now, job_id, owner, processes);
  return living;
}

void Quarantine::Killed(TimePoint now, const std::string& job_id, const Owner& owner,
                        const std::vector<os::ProcessInfo>& processes) {
  std::erase_if(stuck_, [](const Stuck& stuck) { return Ended(stuck.pid, stuck.start_time); });
  for (const os::ProcessInfo& process : processes) {
    if (process.state == 'Z') continue;
    const bool known = std::any_of(stuck_.begin(), stuck_.end(), [&](const Stuck& stuck) {
      return stuck.pid == process.pid && stuck.start_time == process.start_time;
    });
    if (known || Ended(process.pid, process.start_time)) continue;
    stuck_.push_back({process.pid, process.start_time, now, job_id, owner});
  }
}

bool Quarantine::IsInDriver(absl::string_view stack) { return absl::StrContains(stack, "[nvidia"); }

std::string Quarantine::Why(TimePoint now, std::optional<uid_t> uid) {
  std::string named, first_owner;
  std::set<uid_t> users;
  bool in_driver = false;
  size_t count = 0;
  bool is_new = false;
  std::erase_if(stuck_, [&](Stuck& stuck) {
    const auto process = os::FindProcess(stuck.pid);
    if (!process || process->start_time != stuck.start_time || process->state == 'Z') return true;
    if (now < stuck.killed_at + kBound) return false;
    is_new = !std::exchange(stuck.told, true) || is_new;
    const auto stack = os::ReadSmallFile(absl::StrCat("/proc/", stuck.pid, "/stack"));
    in_driver = in_driver || (stack.ok() && IsInDriver(*stack));
    users.insert(stuck.owner.uid);
    if (first_owner.empty()) first_owner = Escape(stuck.owner.name, 64);
    if (++count <= kMostNamed) {
      absl::StrAppend(&named, named.empty() ? "" : ", ", "pid ", stuck.pid, " of job ",
                      Escape(stuck.job_id, 64), ", user ", Escape(stuck.owner.name, 64), " (state ",
                      std::string(1, process->state), ", in ", os::WaitChannel(stuck.pid), ")");
    }
    return false;
  });
  if (count == 0) return "";
  if (count > kMostNamed) absl::StrAppend(&named, " and ", count - kMostNamed, " more");
  const bool for_all = in_driver || users.size() > 1;
  std::string why = absl::StrCat(
      "quarantined", for_all ? "" : absl::StrCat(" for ", first_owner), ": it takes no jobs",
      for_all ? "" : " of that user's", " while SIGKILL does not end ", named, "; a driver or a ",
      for_all ? "network file system" : "file system",
      " holds it, see the kernel log of the node, and reboot it if that persists");
  if (is_new) log::Error(why);
  return for_all || !uid || users.contains(*uid) ? why : "";
}

}  // namespace dtrain::spawn
