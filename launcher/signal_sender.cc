// SPDX-License-Identifier: Apache-2.0
#include "launcher/signal_sender.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/text.h"
#include "common/os/fd.h"
#include "common/os/process_facts.h"
#include "launcher/job/outcome.h"

namespace dtrain {
namespace {

// A directory service may not answer for long: only names that are known here.
std::string UserName(uid_t uid) {
  if (uid == 0) return "root";
  const char* const name = uid == geteuid() ? std::getenv("USER") : nullptr;
  return name != nullptr && *name != 0 ? Escape(name, 64) : absl::StrCat("uid ", uid);
}

// "dtrain stop JOB", which waits for our end.
bool IsStopCommand(pid_t pid) {
  const auto line = os::ReadSmallFile(absl::StrCat("/proc/", pid, "/cmdline"));
  if (!line.ok()) return false;
  const std::vector<absl::string_view> words = absl::StrSplit(*line, '\0');
  const absl::string_view program = words[0].substr(words[0].rfind('/') + 1);
  return words.size() > 1 && program == "dtrain" && words[1] == "stop";
}

}  // namespace

std::string NameSender(const loop::SignalWatch::Sender& sender) {
  if (sender.pid == 0 || sender.pid == getpid()) return "";
  if (IsStopCommand(sender.pid)) {
    utsname host{};
    (void)uname(&host);
    return absl::StrCat(job::kStopCommand, UserName(sender.uid), ", ", Escape(host.nodename), ")");
  }
  const std::string name = os::CommandName(sender.pid);
  const std::string user =
      absl::StrCat(sender.uid == 0 || absl::StartsWith(UserName(sender.uid), "uid ") ? "" : "user ",
                   UserName(sender.uid));
  // It may have ended.
  return name == "?" ? absl::StrCat("pid ", sender.pid, " (", user, ")")
                     : absl::StrCat(Escape(name, 32), " (pid ", sender.pid, ", ", user, ")");
}

}  // namespace dtrain
