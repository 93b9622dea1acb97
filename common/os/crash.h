// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// What a process was at when it died of a fatal signal, for who looks for the reason. One record
// for the whole process, as a signal's handler has nowhere else to look.
namespace dtrain::os {

// From now on SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT write a line with the last request to
// stderr and to `path`, and then do what they did before: end the process, with a core where the
// limit allows one. The calling thread gets a stack for it, so that an overflow is told, too. Once.
absl::Status RecordCrashes(const std::string& path);

// What this process does now; kept until the next one. No secrets: it ends in a log. `job` and
// `who` may be empty and are from outside: what cannot be printed becomes '?'. One thread only;
// allocates nothing.
void NoteRequest(absl::string_view method, absl::string_view job, absl::string_view who);

// A core of this process holds tokens, keys and what jobs forward: the soft limit becomes 0, unless
// the environment has DTRAIN_CORE_DUMPS=1. Programs that it starts inherit that; the hard limit
// stays.
void WriteNoCores();

}  // namespace dtrain::os
