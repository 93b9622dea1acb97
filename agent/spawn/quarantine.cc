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
// A look reads three files of /proc, and each Hello asks for one.
constexpr Duration kLookPause = std::chrono::milliseconds(250);

bool Ended(pid_t pid, uint64_t start_time) {
  const auto process = os::FindProcess(pid);
  return !process || process->start_time != start_time || process->state == 'Z';
}

// The others are more likely to be about to end. '?': threads other than the main one may hang.
bool MayHang(const os::ProcessInfo& process) {
  return process.state == 'D' || process.state == '?';
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
  size_t of_job = 0;
  std::erase_if(stuck_, [&](const auto& entry) {
    const auto& [pid, stuck] = entry;
    if (stuck.owner.uid != owner.uid || stuck.job_id != job_id) return false;
    if (Ended(pid, stuck.start_time)) return true;
    ++of_job;
    return false;
  });
  for (const bool hangs : {true, false}) {
    for (const os::ProcessInfo& process : processes) {
      if (of_job >= kMostOfJob) return;
      if (process.state == 'Z' || MayHang(process) != hangs) continue;
      const auto known = stuck_.find(process.pid);
      if (known != stuck_.end() && known->second.start_time == process.start_time) continue;
      if (Ended(process.pid, process.start_time)) continue;
      stuck_.insert_or_assign(process.pid, Stuck{process.start_time, now, job_id, owner});
      ++of_job;
    }
  }
}

TimePoint Quarantine::LooksFrom(uid_t uid) const {
  const auto found = looks_from_.find(uid);
  return found != looks_from_.end() ? found->second : TimePoint{};
}

void Quarantine::Looked(uid_t uid, TimePoint begin, TimePoint end, int times) {
  TimePoint& from = looks_from_[uid];
  from = std::max(from, end) + times * (end - begin);
}

bool Quarantine::IsInDriver(absl::string_view stack) { return absl::StrContains(stack, "[nvidia"); }

bool Quarantine::IsOfFuse(absl::string_view channel) {
  // Compilers append to names (".isra.0"), or have the caller's alone.
  return absl::StartsWith(channel, "request_wait_answer") || absl::StartsWith(channel, "fuse_") ||
         absl::StartsWith(channel, "__fuse_");
}

bool Quarantine::Look(pid_t pid, Stuck& stuck) const {
  const auto process = os::FindProcess(pid);
  if (!process || process->start_time != stuck.start_time || process->state == 'Z') return false;
  const auto stack = os::ReadSmallFile(absl::StrCat("/proc/", pid, "/stack"));
  stuck.in_driver = stack.ok() && IsInDriver(*stack);
  stuck.state = process->state;
  stuck.channel = channel_of_(pid);
  return true;
}

std::string Quarantine::Why(TimePoint now, std::optional<uid_t> uid) {
  std::string named, owners;
  std::set<uid_t> users, beyond_fuse;
  bool in_driver = false;
  size_t count = 0;
  bool is_new = false;
  for (auto entry = stuck_.begin(); entry != stuck_.end();) {
    const auto at = entry++;
    auto& [pid, stuck] = *at;
    if (now < stuck.killed_at + kBound) continue;
    if (now >= stuck.look_due) {
      if (!Look(pid, stuck)) {
        stuck_.erase(at);
        continue;
      }
      stuck.look_due = now + kLookPause;
    }
    is_new = !std::exchange(stuck.told, true) || is_new;
    in_driver = in_driver || stuck.in_driver;
    if (!IsOfFuse(stuck.channel)) beyond_fuse.insert(stuck.owner.uid);
    if (users.insert(stuck.owner.uid).second && users.size() <= kMostNamed) {
      absl::StrAppend(&owners, owners.empty() ? "" : ", ", Escape(stuck.owner.name, 64));
    }
    if (++count <= kMostNamed) {
      absl::StrAppend(&named, named.empty() ? "" : ", ", "pid ", pid, " of job ",
                      Escape(stuck.job_id, 64), ", user ", Escape(stuck.owner.name, 64), " (state ",
                      std::string(1, stuck.state), ", in ", stuck.channel, ")");
    }
  }
  if (count == 0) return "";
  if (count > kMostNamed) absl::StrAppend(&named, " and ", count - kMostNamed, " more");
  if (users.size() > kMostNamed) {
    absl::StrAppend(&owners, " and ", users.size() - kMostNamed, " more");
  }
  const bool for_all = in_driver || beyond_fuse.size() > 1;
  std::string why = absl::StrCat(
      "quarantined", for_all ? "" : absl::StrCat(" for ", owners), ": it takes no jobs",
      for_all            ? ""
      : users.size() > 1 ? " from these users"
                         : " of that user's",
      " while SIGKILL does not end ", named, "; a driver or a ",
      for_all ? "network file system" : "file system",
      " holds it, see the kernel log of the node, and reboot it if that persists");
  if (is_new) log::Error(why);
  return for_all || !uid || users.contains(*uid) ? why : "";
}

}  // namespace dtrain::spawn
