// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/look_watch.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/text.h"
#include "common/loop/threads.h"
#include "common/os/bounded_look.h"
#include "common/os/fd.h"

namespace dtrain::status {
namespace {

constexpr Duration kBetweenLines = std::chrono::minutes(1);
// How late a line may be.
constexpr int kTicksInPatience = 5;

// That SIGINT ends the process. One that has come before, for a handler that the loop would call,
// waits until a thread takes it: so this one does. For one thread, which blocks all signals.
class InterruptEnds {
 public:
  InterruptEnds() = default;
  ~InterruptEnds() { Set(false); }
  InterruptEnds(const InterruptEnds&) = delete;
  InterruptEnds& operator=(const InterruptEnds&) = delete;

  void Set(bool on) {
    if (on == on_) return;
    sigset_t interrupt;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    if (on) {
      struct sigaction ends {};
      ends.sa_handler = SIG_DFL;
      // In one call: the other thread may set a handler at the same time.
      if (sigaction(SIGINT, &ends, &before_) != 0) return;
      if (before_.sa_handler == SIG_IGN) {
        (void)sigaction(SIGINT, &before_, nullptr);
        return;
      }
      (void)pthread_sigmask(SIG_UNBLOCK, &interrupt, nullptr);
    } else {
      (void)pthread_sigmask(SIG_BLOCK, &interrupt, nullptr);
      // Unless the process has a handler by now.
      struct sigaction now {};
      if (sigaction(SIGINT, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
        (void)sigaction(SIGINT, &before_, nullptr);
      }
    }
    on_ = on;
  }

 private:
  bool on_ = false;
  struct sigaction before_ {};
};

// Not by stdio: the other thread may have its lock.
void SayWaited(const std::string& folder, Duration waited, absl::string_view next) {
  const std::string line =
      absl::StrCat("dtrain: still waiting for ", Escape(folder), " after ",
                   std::chrono::duration_cast<std::chrono::seconds>(waited).count(),
                   " s (is its file server down, or slow?); ", next, "\n");
  (void)!write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

struct LookWatch::Shared {
  const std::string folder;
  const Duration patience;
  const LookLimit limit;
  // When the present look began, or last had an answer; 0 between looks.
  std::atomic<Duration::rep> since{0};
};

LookWatch::LookWatch(const std::string& folder, Duration patience, const LookLimit& limit)
    : shared_(new Shared{.folder = folder, .patience = patience, .limit = limit}) {
  if (os::AnswersAtOnce(folder)) return;
  auto pipe = os::Pipe();
  if (!pipe.ok()) return;
  auto thread = loop::StartThread("watch a look", [shared = shared_, end = std::move(pipe->first)] {
    Work(*shared, end.get());
  });
  if (!thread.ok()) return;
  thread->detach();
  end_ = std::move(pipe->second);
}

LookWatch::~LookWatch() = default;

void LookWatch::Set(bool looks) {
  shared_->since.store(looks ? Clock::now().time_since_epoch().count() : 0,
                       std::memory_order_relaxed);
}

void LookWatch::Work(const Shared& shared, int end) {
  using std::chrono::milliseconds;
  const auto tick = std::chrono::ceil<milliseconds>(shared.patience / kTicksInPatience);
  InterruptEnds interrupt;
  TimePoint next_line{};
  for (;;) {
    pollfd ended{end, POLLIN, 0};
    if (poll(&ended, 1, static_cast<int>(tick.count())) > 0) return;
    const Duration::rep since = shared.since.load(std::memory_order_relaxed);
    const TimePoint now = Clock::now();
    const Duration waited = now.time_since_epoch() - Duration(since);
    if (since != 0 && waited >= tick && now >= shared.limit.end) {
      SayWaited(shared.folder, waited, "the time limit is reached");
      _exit(shared.limit.exit_code);
    }
    const bool late = since != 0 && waited >= shared.patience;
    interrupt.Set(late);
    if (!late || now < next_line) continue;
    next_line = now + kBetweenLines;
    SayWaited(shared.folder, waited, "Ctrl-C leaves");
  }
}

}  // namespace dtrain::status
