// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dtrain::spawner {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string Because(const std::string& what);  // with errno's words; leaves errno
// A line to stderr, which must be escaped. Lost when it would have to wait.
void Log(const std::string& line);

// {end to read, end to write}, not inherited by programs; both empty: errno says why.
std::pair<Fd, Fd> Pipe(int flags);

// A fork, if `cgroup` is a cgroup's directory, in that. 0: this is the child; -1: errno says why.
// No pid is kept anywhere: the pidfd is the child's only name.
int Fork(int cgroup, Fd* pidfd);
// Closes what others gave, which lasts as long as they like, unless somebody else has it too: a
// child has, until its exit, which waits for nothing. False: it cannot be made; nothing is closed.
bool CloseByExit(std::vector<Fd>* fds, std::vector<Fd>* children);
void KillChild(const Fd& pidfd);
// False while it runs. `code` is -1 after a signal.
bool Reap(const Fd& pidfd, int* code, int* signal);

}  // namespace dtrain::spawner
