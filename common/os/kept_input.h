// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>

#include "common/os/unique_fd.h"

namespace dtrain::os {

// Input that others read after us. What was read of a file, a pipe or a socket stays there until it
// is taken, so that the next reader finds what nobody has used. Terminals and other devices cannot
// give anything back. Borrows the descriptor, whose flags stay as they are.
class KeptInput {
 public:
  explicit KeptInput(int fd);
  int fd() const { return fd_; }
  // What Read gives stays there until Take.
  bool keeps() const { return kind_ != Kind::kOther; }
  // As read; from the first byte that was not taken. Of a descriptor that poll calls readable it
  // does not block; EAGAIN: it is not, after all.
  ssize_t Read(char* buffer, size_t size);
  // Takes bytes that were read; fewer, where another reader has taken some.
  void Take(size_t bytes);

 private:
  enum class Kind { kFile, kPipe, kSocket, kOther };
  int fd_;
  Kind kind_ = Kind::kOther;
  UniqueFd copy_in_, copy_out_;  // of a pipe
};

}  // namespace dtrain::os
