// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "spawner/children.h"
#include "spawner/protocol.h"

namespace dtrain::spawner {

// The cgroup, of version 2, that is the unit's: where this process is, or, if systemd started it in
// a leaf below, above that. `leaf`: it did, and so it will the next one. Returns why there is none.
std::string FindCgroup(std::string* path, bool* leaf);
// Moves this process to `spawner` below `path`, as what has controllers for its children must have
// no processes, and makes `jobs` there. Returns why that cannot be.
std::string PrepareCgroups(const std::string& path);

// JOBS/uUID/JOB.ATTEMPT
std::string CgroupOf(const std::string& jobs, const Name& name);
// With {shepherd,workers}, of which the user gets what lets him make cgroups below `workers`, and
// move and clone processes there. False: errno says why.
bool MakeCgroup(const std::string& path, uid_t uid, gid_t gid);
bool KillCgroup(const std::string& path);
// Of an open cgroup.events, for POLLPRI; false also when the cgroup is gone.
bool IsPopulated(const Fd& events);
// At most kMostPids of those in it and below.
std::vector<uint32_t> PidsIn(const std::string& path);
// False while something of it is there: call again. Removes a few at a time.
bool RemoveCgroup(const std::string& path);

// Those in `path`, hidden ones too: users make some. At most 4096.
std::vector<std::string> Folders(const std::string& path);
// False: errno says why.
bool WriteFile(const std::string& path, std::string_view text);
std::string ReadFile(const std::string& path, size_t most);
// Of root's, which nobody else can write; else `why`.
std::string ReadRootsFile(const std::string& path, std::string* why);

}  // namespace dtrain::spawner
