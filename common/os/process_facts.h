// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
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
// Whether it waits for input from this pipe ("pipe:[17]"), as far as the kernel says: a thread that
// sleeps in a read of it, or the main thread in a poll, where its standard input is that pipe.
// Absent: the kernel does not say.
std::optional<bool> WaitsForInput(pid_t pid, const std::string& pipe);
// Bytes that it has caused to be written to disks and file servers so far.
uint64_t BytesToDisk(pid_t pid);
// The files that it has open for writing, at most `most`, those that it has opened last first. No
// file system is asked, because it may hang.
struct FileBeingWritten {
  std::string path;
  uint64_t position = 0;  // where it writes next
  bool appends = false;   // wherever others are
};
std::vector<FileBeingWritten> FilesBeingWritten(pid_t pid, size_t most);

}  // namespace dtrain::os
