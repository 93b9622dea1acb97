// SPDX-License-Identifier: Apache-2.0
#include "launcher/signal_sender.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/text.h"
#include "common/loop/signal_sender.h"
#include "common/os/fd.h"
#include "launcher/job/outcome.h"

namespace dtrain {
namespace {

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
  if (sender.pid == 0 || sender.pid == getpid() || !IsStopCommand(sender.pid)) {
    return loop::NameOf(sender);
  }
  utsname host{};
  (void)uname(&host);
  return absl::StrCat(job::kStopCommand, loop::UserText(sender.uid), ", ", Escape(host.nodename),
                      ")");
}

}  // namespace dtrain
