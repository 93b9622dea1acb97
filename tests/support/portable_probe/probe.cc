// SPDX-License-Identifier: Apache-2.0
// Tries what portable programs have of their own, or get from an old glibc, on the machine it runs
// on. Ends with 0, or says what is wrong.
#include <dlfcn.h>
#include <fcntl.h>
#include <gnu/libc-version.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

// What Ubuntu 24.04's headers call. This machine's glibc need not have them; the shim does.
extern "C" {
__attribute__((weak)) long __isoc23_strtol(const char*, char**, int);
__attribute__((weak)) unsigned long long __isoc23_strtoull(const char*, char**, int);
__attribute__((weak)) int __isoc23_sscanf(const char*, const char*, ...);
}

namespace {

using Clock = std::chrono::steady_clock;

int constructed = 0;
struct Constructed {
  Constructed() { constructed += 10; }
} const object;
__attribute__((constructor)) void Constructor() { constructed += 1; }

int wrong = 0;

void Expect(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "portable-probe: %s\n", what);
  ++wrong;
}

int Thrown(int depth) {
  if (depth == 0) throw std::runtime_error("thrown");
  return Thrown(depth - 1) + 1;
}

bool Catches() {
  try {
    return Thrown(20) < 0;
  } catch (const std::exception& error) {
    return std::string(error.what()) == "thrown";
  }
}

// Nobody notifies: it ends by its own clock, which is not the system's.
bool WaitsUntil() {
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock lock(mutex);
  const auto end = Clock::now() + std::chrono::milliseconds(120);
  while (condition.wait_until(lock, end) != std::cv_status::timeout) {
  }
  return Clock::now() >= end && Clock::now() < end + std::chrono::seconds(20);
}

// Long before its end.
bool IsNotified() {
  std::mutex mutex;
  std::condition_variable condition;
  bool told = false;
  std::thread other([&] {
    const std::lock_guard lock(mutex);
    told = true;
    condition.notify_all();
  });
  std::unique_lock lock(mutex);
  const bool in_time =
      condition.wait_until(lock, Clock::now() + std::chrono::hours(1), [&] { return told; });
  lock.unlock();
  other.join();
  return in_time;
}

bool SeesFiles() {
  struct stat by_name {
  }, by_link{}, by_fd{}, below{};
  std::ifstream itself("/proc/self/exe", std::ios::binary);
  char magic[4] = {};
  itself.read(magic, sizeof(magic));
  return itself && magic[1] == 'E' && stat("/", &by_name) == 0 && S_ISDIR(by_name.st_mode) &&
         lstat("/proc/self", &by_link) == 0 && S_ISLNK(by_link.st_mode) && fstat(0, &by_fd) == 0 &&
         fstatat(AT_FDCWD, "/", &below, 0) == 0 && below.st_ino == by_name.st_ino &&
         stat("/no/such/file", &by_name) != 0 && errno == ENOENT;
}

bool Loads() {
  void* library = dlopen("libresolv.so.2", RTLD_NOW);
  return library != nullptr && dlsym(library, "ns_name_ntop") != nullptr && dlclose(library) == 0;
}

bool ReadsNumbers() {
  if (__isoc23_strtol == nullptr || __isoc23_strtoull == nullptr || __isoc23_sscanf == nullptr) {
    return false;
  }
  char* end = nullptr;
  int a = 0, b = 0;
  return __isoc23_strtol("-12x", &end, 10) == -12 && *end == 'x' &&
         __isoc23_strtoull("0xffffffffffffffff", nullptr, 0) == ~0ULL &&
         __isoc23_sscanf("3 4", "%d %d", &a, &b) == 2 && a == 3 && b == 4;
}

}  // namespace

int main() {
  Expect(constructed == 11, "constructors have not run, or not each once");
  Expect(environ != nullptr && getenv("PATH") != nullptr, "there is no environment");
  Expect(setenv("PROBE", "1", 1) == 0 && environ[0] != nullptr && getenv("PROBE") != nullptr,
         "the environment has two copies");
  Expect(Catches(), "an exception is not caught");
  std::thread([] { Expect(Catches(), "an exception in a thread is not caught"); }).join();
  Expect(WaitsUntil(), "a wait on the steady clock is not right");
  Expect(IsNotified(), "a wait on the steady clock is not woken");
  Expect(SeesFiles(), "stat and its like do not work");
  Expect(Loads(), "dlopen does not work");
  Expect(getpwuid(0) != nullptr, "the name service does not know root");
  Expect(ReadsNumbers(), "the C23 names of strtol and its like do not work");
  std::random_device random;
  const auto first = random(), second = random(), third = random();
  Expect(first != second || second != third, "random numbers are equal");
  volatile double two = 2, ten = 10;
  Expect(std::pow(two, ten) == 1024 && std::log2(1024 * (two - 1)) == 10, "pow and log2 are wrong");
  if (wrong == 0) std::printf("portable-probe: all right with glibc %s\n", gnu_get_libc_version());
  return wrong == 0 ? 0 : 1;
}
