// SPDX-License-Identifier: Apache-2.0
#include "common/loop/signal_sender.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/os/process_facts.h"

namespace dtrain::loop {
namespace {

// Our own, where it is known.
const char* OwnName(uid_t uid) {
  const char* const name = uid == geteuid() ? std::getenv("USER") : nullptr;
  return name != nullptr && *name != 0 ? name : nullptr;
}

}  // namespace

std::string UserText(uid_t uid) {
  if (uid == 0) return "root";
  const char* const name = OwnName(uid);
  return name != nullptr ? Escape(name, 64) : absl::StrCat("uid ", uid);
}

std::string NameOf(const SignalWatch::Sender& sender) {
  if (sender.pid == 0 || sender.pid == getpid()) return "";
  const std::string user = absl::StrCat(
      sender.uid != 0 && OwnName(sender.uid) != nullptr ? "user " : "", UserText(sender.uid));
  const std::string name = os::CommandName(sender.pid);
  // It may have ended.
  return name == "?" ? absl::StrCat("pid ", sender.pid, " (", user, ")")
                     : absl::StrCat(Escape(name, 32), " (pid ", sender.pid, ", ", user, ")");
}

std::string NameSignal(int signal) {
  const std::string from = NameOf(SignalWatch::SenderOf(signal));
  return absl::StrCat(SignalName(signal), from.empty() ? "" : " from ", from);
}

}  // namespace dtrain::loop
