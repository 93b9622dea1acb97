// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

// Shared memory that has a name and therefore outlives its processes: files of /dev/shm itself,
// which is what POSIX objects and semaphores are, and System V segments.
namespace dtrain::os {

inline constexpr char kSharedMemoryFolder[] = "/dev/shm";

// Names an object for good, whatever is called like it later.
struct SharedMemory {
  bool is_segment = false;  // of System V
  uint64_t place = 0;       // the file's device; when the segment was made
  uint64_t number = 0;      // inode, or the segment's id
  auto operator<=>(const SharedMemory&) const = default;
};

struct NamedSharedMemory {
  SharedMemory object;
  std::string name;    // of a file, any bytes
  uint64_t bytes = 0;  // of memory
  pid_t maker = 0;     // of a segment, in this PID namespace
  uid_t owner = 0;
};

// The objects of one user, or of all. Links, files that are not regular, and our own records do not
// count.
std::vector<NamedSharedMemory> ListSharedMemory(std::optional<uid_t> owner);

// The objects that a process has mapped, and the files of /dev/shm that it has open. A process maps
// shared memory to use it; a file that is only open may be a checkpoint.
struct HeldSharedMemory {
  std::set<SharedMemory> mapped;
  std::set<SharedMemory> open;
};
// Nothing of a process that may not be looked at.
HeldSharedMemory SharedMemoryOf(pid_t pid);

enum class SharedMemoryUse {
  kNobody,
  kSomebody,  // or nobody can tell
  kGone,      // or the name is another object's by now
};
// By the kernel's word: of processes of other users and in other PID namespaces, too. Only for the
// object's owner and root. A thread must not be in here while another one is.
SharedMemoryUse UseOf(const NamedSharedMemory& named, uid_t owner);
// Removes it if nobody uses it; kNobody: it is removed. Takes nothing else away that has been given
// its name meanwhile.
SharedMemoryUse RemoveUnused(const NamedSharedMemory& named, uid_t owner);

// "3 objects, 1.2 GB"
std::string Describe(const std::vector<NamedSharedMemory>& objects);

// What a job has made, in a file beside it, so that it can be told and removed after a crash of the
// job's shepherd: lives as long as the machine runs, like the objects.
class SharedMemoryRecord {
 public:
  // `mark`: os::ProcessMark of the shepherd. Its file is made with the first object.
  explicit SharedMemoryRecord(std::string mark);
  // The newest 4096 of them at most. None: the file is removed.
  void Write(const std::set<SharedMemory>& objects) const;

 private:
  const std::string mark_;
  const std::string path_;
};

// What records of processes say. Of those that have ended, or of the living but `except`.
struct RecordedSharedMemory {
  std::string path;  // of the record
  uid_t owner = 0;   // only objects of that user are meant
  bool lives = false;
  std::set<SharedMemory> objects;
};
// Those of one user, or of all. Anybody can plant files like records: so of one user it reads 64
// records with 4096 objects in all at most, each record whole or not at all.
std::vector<RecordedSharedMemory> ReadSharedMemoryRecords(std::optional<uid_t> owner);

}  // namespace dtrain::os
