// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "common/loop/loop.h"

namespace dtrain {

// Who has sent us a signal, by what the kernel says: "bash (pid 17, root)", or "dtrain stop
// (root, node0)" of that command on this host; empty: nobody, as with Ctrl-C, or a process that
// cannot be seen from here.
std::string NameSender(const loop::SignalWatch::Sender& sender);

}  // namespace dtrain
