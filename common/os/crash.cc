// SPDX-License-Identifier: Apache-2.0
#include "common/os/crash.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/posix_error.h"

namespace dtrain::os {
namespace {

struct Fatal {
  int signal;
  const char* name;
};
constexpr Fatal kFatal[] = {{SIGSEGV, "SIGSEGV"},
                            {SIGBUS, "SIGBUS"},
                            {SIGILL, "SIGILL"},
                            {SIGFPE, "SIGFPE"},
                            {SIGABRT, "SIGABRT"}};
// The handler's own frames and those of what it calls; the kernel's frame has the vector registers.
constexpr size_t kStack = 64 << 10;
constexpr size_t kLongestPart = 80;

// Text of bounded length: a handler may not allocate.
class Line {
 public:
  void Clear() { size_ = 0; }
  void Add(absl::string_view text) {
    for (char c : text.substr(0, kLongestPart)) Put(c >= ' ' && c <= '~' ? c : '?');
  }
  void Add(uint64_t number) {
    char digits[20];
    size_t count = 0;
    do {
      digits[count++] = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number != 0);
    while (count > 0) Put(digits[--count]);
  }
  void Append(const Line& other) {
    for (size_t i = 0; i < other.size_; ++i) Put(other.text_[i]);
  }
  void End() { text_[size_++] = '\n'; }
  void WriteTo(int fd) const { (void)!write(fd, text_, size_); }

 private:
  void Put(char c) {
    if (size_ < sizeof(text_) - 1) text_[size_++] = c;  // a byte is left for End
  }
  char text_[512];
  size_t size_ = 0;
};

// The last request, and room for the next: a signal may come in the middle of writing it.
Line notes[2];
std::atomic<size_t> current_note{0};
char record_path[PATH_MAX];
struct sigaction before[std::size(kFatal)];
std::atomic<bool> told{false};
alignas(16) char stack[kStack];

void Tell(const char* name) {
  Line line;
  line.Add(program_invocation_short_name);
  line.Add(", process ");
  line.Add(static_cast<uint64_t>(getpid()));
  line.Add(", died of ");
  line.Add(name);
  line.Add("; its last request was ");
  line.Append(notes[current_note.load(std::memory_order_acquire)]);
  line.End();
  line.WriteTo(STDERR_FILENO);
  const int fd = open(record_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return;
  line.WriteTo(fd);
  close(fd);
}

void OnFatal(int signal, siginfo_t* info, void*) {
  const int saved = errno;
  for (size_t i = 0; i < std::size(kFatal); ++i) {
    if (kFatal[i].signal != signal) continue;
    if (!told.exchange(true)) Tell(kFatal[i].name);
    sigaction(signal, &before[i], nullptr);
  }
  // A fault comes again when its instruction does, with what was where in the core; what somebody
  // has sent does not.
  if (info->si_code <= 0) (void)raise(signal);
  errno = saved;
}

}  // namespace

absl::Status RecordCrashes(const std::string& path) {
  if (path.size() >= sizeof(record_path)) {
    return absl::InvalidArgumentError(absl::StrCat("the path ", path, " is too long"));
  }
  std::memcpy(record_path, path.c_str(), path.size() + 1);
  notes[0].Clear();
  notes[0].Add("none");
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof(stack);
  if (sigaltstack(&alternate, nullptr) != 0) return PosixError(errno, "set a signal stack");
  struct sigaction action {};
  action.sa_sigaction = OnFatal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < std::size(kFatal); ++i) {
    if (sigaction(kFatal[i].signal, &action, &before[i]) != 0) {
      return PosixError(errno, absl::StrCat("catch ", kFatal[i].name));
    }
  }
  return absl::OkStatus();
}

void NoteRequest(absl::string_view method, absl::string_view job, absl::string_view who) {
  const size_t next = 1 - current_note.load(std::memory_order_relaxed);
  Line& line = notes[next];
  line.Clear();
  line.Add(method);
  if (!job.empty()) {
    line.Add(" of job ");
    line.Add(job);
  }
  if (!who.empty()) {
    line.Add(" for ");
    line.Add(who);
  }
  current_note.store(next, std::memory_order_release);
}

void WriteNoCores() {
  const char* wanted = getenv("DTRAIN_CORE_DUMPS");
  if (wanted != nullptr && absl::string_view(wanted) == "1") return;
  rlimit limit;
  if (getrlimit(RLIMIT_CORE, &limit) != 0) return;
  limit.rlim_cur = 0;
  (void)setrlimit(RLIMIT_CORE, &limit);  // to lower the soft limit is always allowed
}

}  // namespace dtrain::os
