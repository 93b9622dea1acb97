// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace dtrain::agent {

// The agent on a byte stream: serves one launcher on stdin and stdout (`one_socket`: stdin is a
// socket that carries both ways), and ends when the launcher is gone and no worker is left.
// `resume`: the launcher comes back to a session of the node's resident agent, of whatever build
// that is by now. Returns the process's exit code.
int RunBridge(bool one_socket, bool resume);

}  // namespace dtrain::agent
