// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "common/os/unique_fd.h"

namespace dtrain::shepherd {

// Holds one log stream until the launcher has it, in files without a name, which are gone with
// their only descriptors, however the process ends. The first file is made with the first byte. A
// directory that takes no more (it is full, over quota, or its disk fails) is followed by the next,
// and the last one by memory: the stream goes on there, and what is in the file before stays
// readable.
class SpoolFile {
 public:
  // The places, the best first.
  explicit SpoolFile(std::vector<std::string> directories) : directories_(std::move(directories)) {}

  // What was appended so far. Offsets of the stream, also below.
  uint64_t size() const { return size_; }
  // Up to `most` bytes of a pipe, without a copy. As splice: 0 is the pipe's end, -1 an error in
  // errno; EINVAL or ENOSYS: it cannot be done here, and nothing was moved.
  ssize_t Splice(int pipe, size_t most);
  // As write.
  ssize_t Write(const char* data, size_t length);
  // The stream grows in memory: the reader has to keep up.
  bool in_memory() const { return !files_.empty() && files_.back().in_memory; }

  // Where the bytes from `offset` on are, which is kept_from() at least and below size().
  struct Place {
    int fd;
    off64_t at;
    uint64_t bytes;  // that follow each other there
  };
  Place Find(uint64_t offset) const;
  // Gives back the space before `offset`, in big steps, or small ones where space is `scarce`.
  void Reclaim(uint64_t offset, bool scarce);
  // All before it was given back.
  uint64_t kept_from() const { return kept_from_; }

 private:
  struct File {
    os::UniqueFd fd;
    uint64_t begin;  // of the stream, where the file is at 0
    bool in_memory = false;
  };
  template <typename Append>
  ssize_t Take(Append append);
  bool OpenNext();

  const std::vector<std::string> directories_;
  size_t next_place_ = 0;  // beyond all directories: memory
  std::deque<File> files_;
  uint64_t size_ = 0;
  uint64_t reclaimed_ = 0;  // or tried to be
  uint64_t kept_from_ = 0;
};

}  // namespace dtrain::shepherd
