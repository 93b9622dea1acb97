// SPDX-License-Identifier: Apache-2.0
#include "agent/session/quarantine.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/os/process_tree.h"

namespace dtrain::session {
namespace {

constexpr size_t kMostNamed = 3;

}  // namespace

void Quarantine::Add(const std::string& job_id, const std::string& owner,
                     const std::vector<pid_t>& pids) {
  for (pid_t pid : pids) {
    auto process = os::FindProcess(pid);
    if (!process || process->state == 'Z') continue;
    const bool known = std::any_of(stuck_.begin(), stuck_.end(), [&](const Stuck& stuck) {
      return stuck.pid == pid && stuck.start_time == process->start_time;
    });
    if (!known) stuck_.push_back({pid, process->start_time, job_id, owner});
  }
  if (std::string why = Why(); !why.empty()) log::Error(why);
}

std::string Quarantine::Why() {
  std::string named;
  size_t count = 0;
  std::erase_if(stuck_, [&](const Stuck& stuck) {
    auto process = os::FindProcess(stuck.pid);
    if (!process || process->start_time != stuck.start_time || process->state == 'Z') return true;
    if (++count <= kMostNamed) {
      absl::StrAppend(&named, named.empty() ? "" : ", ", "pid ", stuck.pid, " of job ",
                      Escape(stuck.job_id, 64), ", user ", stuck.owner, " (state ",
                      std::string(1, process->state), ", in ", os::WaitChannel(stuck.pid), ")");
    }
    return false;
  });
  if (count == 0) return "";
  if (count > kMostNamed) absl::StrAppend(&named, " and ", count - kMostNamed, " more");
  return absl::StrCat("quarantined: it takes no jobs while SIGKILL does not end ", named,
                      "; a driver or a network file system holds it, see the kernel log of the "
                      "node, and reboot it when that stays");
}

}  // namespace dtrain::session
