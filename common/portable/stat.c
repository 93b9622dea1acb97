// SPDX-License-Identifier: Apache-2.0
// Functions since glibc 2.33. Before, <sys/stat.h> made calls of __xstat and its like of them,
// which newer glibcs still have.
#define _GNU_SOURCE
#include <sys/stat.h>

// The version of struct stat that the kernel of this machine fills in.
#if defined(__x86_64__)
enum { kVersion = 1 };
#elif defined(__aarch64__)
enum { kVersion = 0 };
#else
#error "which version of struct stat does this machine have?"
#endif

int __xstat(int version, const char* path, struct stat* info);
int __lxstat(int version, const char* path, struct stat* info);
int __fxstat(int version, int fd, struct stat* info);
int __fxstatat(int version, int fd, const char* path, struct stat* info, int flags);

int stat(const char* path, struct stat* info) { return __xstat(kVersion, path, info); }
int lstat(const char* path, struct stat* info) { return __lxstat(kVersion, path, info); }
int fstat(int fd, struct stat* info) { return __fxstat(kVersion, fd, info); }
int fstatat(int fd, const char* path, struct stat* info, int flags) {
  return __fxstatat(kVersion, fd, path, info, flags);
}

// The same structure on machines of 64 bits.
int stat64(const char* path, struct stat64* info) { return stat(path, (struct stat*)info); }
int lstat64(const char* path, struct stat64* info) { return lstat(path, (struct stat*)info); }
int fstat64(int fd, struct stat64* info) { return fstat(fd, (struct stat*)info); }
int fstatat64(int fd, const char* path, struct stat64* info, int flags) {
  return fstatat(fd, path, (struct stat*)info, flags);
}
