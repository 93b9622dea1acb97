// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launcher/transport/agent_binary.h"
#include "launcher/transport/handshake.h"

// How an agent comes to run on a node where nothing of ours is installed. The remote command is
// /bin/sh and nothing else, so that it means the same to every login shell (sh, bash, zsh, tcsh,
// fish) and to commands that run their words without a shell (docker exec, kubectl exec, srun).
// What the shell is to do comes over its stdin.
namespace dtrain::transport {

inline constexpr char kRemoteShell[] = "/bin/sh";

// What to write to the remote shell: it runs the agent for its machine from the node's cache, or
// asks for it by a `need` line. Then it reads a line that says in which form the agent comes and
// how many bytes that is (AgentPush), reads exactly those, checks the hash of what they give, puts
// it there and runs it. If the line is `look`, it begins again. `bridge_flag`: BridgeFlag().
std::string BootstrapScript(const AgentImages& images, const std::string& bridge_flag);

// Follows the remote side from the script to gRPC. Pure.
class Bootstrap {
 public:
  enum class Want {
    kMore,    // go on reading
    kPush,    // write the agent's bytes, and go on reading
    kReady,   // the agent answers; what TakeRest gives is gRPC's
    kFailed,  // error() says why
  };

  // `machines`: what there are agents for; one alone may be empty, not known.
  // `login_shell`: what runs the shell for us is a login shell, with its start-up files.
  explicit Bootstrap(std::vector<std::string> machines, bool login_shell = false)
      : machines_(std::move(machines)), login_shell_(login_shell) {}

  Want OnOutput(absl::string_view bytes);
  // The shell there reads the script.
  bool begun() const { return begun_; }
  // After kPush: which of the agents, and whether the node can unpack it.
  size_t wanted() const { return wanted_; }
  bool has_gzip() const { return has_gzip_; }
  // The name that the node gives its home, the same on all nodes that share it; empty if unknown.
  const std::string& home() const { return home_; }
  // After kPush, instead of an agent: what to write to make the node look into its cache again. It
  // may then ask for the agent again.
  std::string LookAgain();
  std::string TakeRest() { return scanner_.TakeRest(); }
  // The stream ended before kReady: `how` it did ("`ssh node3` exited with status 255"), and the
  // last of the remote stderr.
  absl::Status OnEnd(absl::string_view how, absl::string_view stderr_tail);
  const absl::Status& error() const { return error_; }

 private:
  Want OnNeed();
  Want Fail(absl::Status error);
  std::string NeverBegun(absl::string_view how) const;
  const std::vector<std::string> machines_;
  const bool login_shell_;
  bool begun_ = false;
  size_t wanted_ = 0;
  bool has_gzip_ = false;
  std::string home_;
  HandshakeScanner scanner_;
  bool pushing_ = false;
  absl::Status error_;
};

// The last lines of a stderr, escaped and joined by "; ": empty when there are none. Pure.
std::string LastLines(absl::string_view text, size_t lines = 3);

}  // namespace dtrain::transport
