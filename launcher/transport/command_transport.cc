// SPDX-License-Identifier: Apache-2.0
#include "launcher/transport/command_transport.h"

#include <pwd.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "launcher/transport/bootstrap.h"
#include "launcher/transport/child_connection.h"
#include "launcher/transport/transport.h"
#include "launcher/transport/words.h"

namespace dtrain::transport {
namespace {

// ssh ends as soon as the remote side has; one that has not by then hangs. At our exit it still
// gets half a second to do so: srun takes a signal as the order to cancel, and Slurm then keeps the
// node busy for its own kill wait.
constexpr EndPolicy kCommandEnd = {std::chrono::seconds(2), std::chrono::seconds(1), true,
                                   std::chrono::milliseconds(500)};

std::string OwnUser() {
  passwd entry, *found = nullptr;
  char buffer[4096];
  getpwuid_r(geteuid(), &entry, buffer, sizeof(buffer), &found);
  return found != nullptr ? found->pw_name : "";
}

bool RunsLoginShell(absl::string_view program) {
  return program.substr(program.rfind('/') + 1) == "ssh";
}

}  // namespace

absl::StatusOr<std::unique_ptr<CommandTransport>> CommandTransport::Make(loop::Loop& loop,
                                                                         absl::string_view command,
                                                                         AgentBinary& agent) {
  auto words = SplitWords(command);
  if (!words.ok()) return words.status();
  return std::make_unique<CommandTransport>(
      loop,
      [words = *std::move(words)](const Target& target) {
        return ExpandWords(words, target, OwnUser());
      },
      agent);
}

CommandTransport::CommandTransport(loop::Loop& loop, Words words, AgentBinary& agent,
                                   std::string shown)
    : loop_(loop),
      words_(std::move(words)),
      agent_(agent),
      shown_(std::move(shown)),
      reaper_(loop) {}

std::unique_ptr<Connection> CommandTransport::Connect(const Target& target, Callbacks callbacks) {
  auto words = words_(target);
  if (!words.ok()) {
    return std::make_unique<FailedConnection>(loop_, words.status(), std::move(callbacks));
  }
  agent_.StartLoading();
  ChildSpec spec;
  spec.login_shell = RunsLoginShell(words->front());
  spec.shown = shown_.empty() ? Escape(absl::StrJoin(*words, " ")) : shown_;
  spec.argv = std::move(*words);
  spec.argv.push_back(kRemoteShell);
  spec.agent = &agent_;
  spec.bridge_flag = BridgeFlag(target);
  spec.end = kCommandEnd;
  return std::make_unique<ChildConnection>(loop_, reaper_, std::move(spec), std::move(callbacks));
}

}  // namespace dtrain::transport
