// SPDX-License-Identifier: Apache-2.0
#include "common/os/kept_input.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>

#include "common/os/fd.h"

namespace dtrain::os {

KeptInput::KeptInput(int fd) : fd_(fd) {
  struct stat status;
  if (fstat(fd, &status) != 0) return;
  if (S_ISREG(status.st_mode) && lseek(fd, 0, SEEK_CUR) >= 0) kind_ = Kind::kFile;
  if (S_ISSOCK(status.st_mode)) kind_ = Kind::kSocket;
  if (!S_ISFIFO(status.st_mode)) return;
  // Without a pipe of our own the bytes are taken as they are read.
  auto copy = Pipe();
  if (!copy.ok()) return;
  std::tie(copy_out_, copy_in_) = *std::move(copy);
  kind_ = Kind::kPipe;
}

ssize_t KeptInput::Read(char* buffer, size_t size) {
  switch (kind_) {
    case Kind::kFile:
      return pread(fd_, buffer, size, lseek(fd_, 0, SEEK_CUR));
    case Kind::kSocket:
      return recv(fd_, buffer, size, MSG_PEEK | MSG_DONTWAIT);
    case Kind::kPipe: {
      const ssize_t copied = tee(fd_, copy_in_.get(), size, SPLICE_F_NONBLOCK);
      return copied <= 0 ? copied : read(copy_out_.get(), buffer, static_cast<size_t>(copied));
    }
    case Kind::kOther:
      break;
  }
  return read(fd_, buffer, size);
}

void KeptInput::Take(size_t bytes) {
  if (kind_ == Kind::kFile) (void)lseek(fd_, static_cast<off_t>(bytes), SEEK_CUR);
  if (kind_ != Kind::kPipe && kind_ != Kind::kSocket) return;
  while (bytes > 0) {
    char buffer[16 << 10];
    pollfd ready{fd_, POLLIN, 0};
    if (poll(&ready, 1, 0) <= 0 || (ready.revents & POLLIN) == 0) return;
    const ssize_t n = read(fd_, buffer, std::min(bytes, sizeof(buffer)));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    bytes -= static_cast<size_t>(n);
  }
}

}  // namespace dtrain::os
