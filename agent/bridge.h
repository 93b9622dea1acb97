// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dtrain::agent {

// kResume: the launcher comes back to a session of the node's resident agent, of whatever build
// that is by now. kAsk: it starts no job.
enum class BridgePurpose { kLaunch, kResume, kAsk };

// The agent on a byte stream: serves one launcher on stdin and stdout (`one_socket`: stdin is a
// socket that carries both ways), and ends when the launcher is gone and no worker is left.
// Returns the process's exit code.
int RunBridge(bool one_socket, BridgePurpose purpose);

}  // namespace dtrain::agent
