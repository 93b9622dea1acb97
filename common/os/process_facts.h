// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

// What /proc says of a process that runs. All answer as of nobody where it has ended or may not be
// looked at.
namespace dtrain::os {

// As the process has set it; its user's to choose. "?" of nobody.
std::string CommandName(pid_t pid);
// Whether its program is one of the usual shells.
bool IsShell(pid_t pid);
// Whether it has a handler for the signal.
bool Catches(pid_t pid, int signal);
// The files that it has open for writing, at most `most`, those that it has opened last first. No
// file system is asked, because it may hang.
std::vector<std::string> FilesBeingWritten(pid_t pid, size_t most);

}  // namespace dtrain::os
