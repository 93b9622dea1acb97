// SPDX-License-Identifier: Apache-2.0
#include "runtime/shm/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace dtrain::runtime {
namespace {

Error Failed(const std::string& what) {
  const int number = errno;
  return {DTRAIN_ERROR_RESOURCES, what + ": " + std::strerror(number)};
}

}  // namespace

SharedMemory::SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, size_);
  CloseFd();
}

Result<SharedMemory> SharedMemory::Create(const char* purpose, size_t bytes) {
  // Beyond this limit, ftruncate raises a signal that ends the program.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    return Error{DTRAIN_ERROR_RESOURCES,
                 "cannot make " + std::to_string(bytes) +
                     " bytes of shared memory: the limit of file sizes (ulimit -f) is " +
                     std::to_string(limit.rlim_cur) + " bytes"};
  }
  SharedMemory memory;
  memory.fd_ = memfd_create(purpose, MFD_CLOEXEC);
  if (memory.fd_ < 0) return Failed("cannot make shared memory (memfd_create)");
  if (ftruncate(memory.fd_, static_cast<off_t>(bytes)) != 0) {
    return Failed("cannot make " + std::to_string(bytes) + " bytes of shared memory");
  }
  if (MaybeError error = memory.Map(bytes)) return *error;
  return memory;
}

Result<SharedMemory> SharedMemory::Open(pid_t pid, int fd, size_t bytes) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  SharedMemory memory;
  memory.fd_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (memory.fd_ < 0) return Failed("cannot open the shared memory of another rank, " + path);
  struct stat info {};
  if (fstat(memory.fd_, &info) != 0) return Failed("cannot look at " + path);
  if (!S_ISREG(info.st_mode) || static_cast<size_t>(info.st_size) < bytes) {
    return Error{DTRAIN_ERROR_RESOURCES, path + " is not the memory of another rank"};
  }
  if (MaybeError error = memory.Map(bytes)) return *error;
  return memory;
}

MaybeError SharedMemory::Map(size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_, 0);
  if (at == MAP_FAILED) return Failed("cannot map " + std::to_string(bytes) + " bytes");
  data_ = static_cast<char*>(at);
  size_ = bytes;
  return std::nullopt;
}

void SharedMemory::CloseFd() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

void SharedMemory::Discard(size_t offset, size_t bytes) {
  fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
}

}  // namespace dtrain::runtime
