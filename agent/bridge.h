// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dtrain::agent {

// kResume: the launcher comes back to a session of the node's resident agent, of whatever build
// that is by now. kKeep, kResumeKept: the job outlives the connection, so where no resident agent
// serves this user a private one does. kAsk: no job is started.
enum class BridgePurpose { kLaunch, kResume, kKeep, kResumeKept, kAsk };

// The agent on a byte stream: serves one launcher on stdin and stdout (`one_socket`: stdin is a
// socket that carries both ways), and ends when the launcher is gone and no worker is left.
// Returns the process's exit code.
int RunBridge(bool one_socket, BridgePurpose purpose);

}  // namespace dtrain::agent
