// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/os/unique_fd.h"

namespace dtrain::status {

inline constexpr Duration kLookPatience = std::chrono::seconds(5);

// If a look still lasts at `end`, the process exits with `exit_code` within two seconds: the look
// itself cannot be ended.
struct LookLimit {
  TimePoint end = kNever;
  int exit_code = 0;
};

// Prints on stderr, at most once a minute, that a look into a folder takes longer than `patience`,
// as on a file server that is down. Whoever looks there waits in the kernel and handles no signal,
// so SIGINT ends the process meanwhile, unless it is ignored. A thread of its own prints; none is
// made for a folder that answers at once (os::AnswersAtOnce), and without one nothing is printed.
// Used by one other thread.
class LookWatch {
 public:
  explicit LookWatch(const std::string& folder, Duration patience = kLookPatience,
                     const LookLimit& limit = {});
  // The watch may end a little later.
  ~LookWatch();
  LookWatch(const LookWatch&) = delete;
  LookWatch& operator=(const LookWatch&) = delete;

  // What `look` returns, which reads in the folder. Not within another look.
  template <typename F>
  auto Do(F&& look) {
    const Span span(*this, /*looks=*/true);
    return std::forward<F>(look)();
  }
  // Within a look: the folder has just answered, and the time counts from now.
  void Beat() { Set(true); }
  // Within a look: `other` waits for something else, such as a terminal, and its time does not
  // count.
  template <typename F>
  auto Pause(F&& other) {
    const Span span(*this, /*looks=*/false);
    return std::forward<F>(other)();
  }

 private:
  struct Shared;
  class Span {
   public:
    Span(LookWatch& watch, bool looks) : watch_(watch), looks_(looks) { watch_.Set(looks_); }
    ~Span() { watch_.Set(!looks_); }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    LookWatch& watch_;
    const bool looks_;
  };
  void Set(bool looks);
  static void Work(const Shared& shared, int end);

  std::shared_ptr<Shared> shared_;  // with the thread, which may be stuck in write(2)
  os::UniqueFd end_;                // of the thread, once it is closed
};

}  // namespace dtrain::status
