// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace dtrain::agent {

// The resident agent: serves launchers of this node, those that came by ssh through `bridge`, and
// with TLS those elsewhere, until SIGTERM; SIGHUP reads certificates and configuration again.
// Workers run on when it ends, however it ends, for as long as their launchers' leases; the next
// agent takes them over. `words`: its flags; with --check it serves nobody and only says whether
// they can be used. Returns the process's exit code.
int RunServe(const std::vector<std::string>& words);

// The private agent of one user (keep.h): the same, on its unix sockets alone. It ends when it has
// had no session and no connection for a minute, or as long as `words` say.
int RunKeep(const std::vector<std::string>& words);

}  // namespace dtrain::agent
