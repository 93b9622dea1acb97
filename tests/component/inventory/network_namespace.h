// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

namespace dtrain::inventory {

// Runs `body` on a thread inside a network namespace of its own, where only an idle loopback
// exists. False, and nothing run, without the right to make one.
inline bool InNetworkNamespace(const std::function<void()>& body) {
  bool entered = false;
  std::thread([&] {
    if (unshare(CLONE_NEWNET) != 0) return;
    entered = true;
    body();
  }).join();
  return entered;
}

// Children of a thread are in the thread's namespace.
inline bool Shell(const std::string& command) { return system(command.c_str()) == 0; }

}  // namespace dtrain::inventory
