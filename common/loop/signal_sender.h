// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

#include "common/loop/loop.h"

// Who has sent us a signal, by what the kernel says. Names are what processes and users call
// themselves, without bytes that a terminal obeys.
namespace dtrain::loop {

// "bash (pid 17, root)"; empty: nobody, as with Ctrl-C, or a process that cannot be seen from here.
std::string NameOf(const SignalWatch::Sender& sender);
// "SIGTERM from bash (pid 17, root)", of the last one of that number.
std::string NameSignal(int signal);

// "root", "al" or "uid 1000". A directory service may not answer for long: only names that are
// known here.
std::string UserText(uid_t uid);

}  // namespace dtrain::loop
