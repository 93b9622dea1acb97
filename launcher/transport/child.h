// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/loop/loop.h"
#include "common/os/pidfd.h"
#include "common/os/spawn.h"
#include "common/os/unique_fd.h"

namespace dtrain::transport {

// What of a remote stderr is kept, whatever a command there writes.
inline constexpr size_t kStderrKept = 64 << 10;

// The last bytes of a stream, in flat memory.
class Tail {
 public:
  explicit Tail(size_t limit = kStderrKept) : limit_(limit) {}
  void Add(absl::string_view bytes) {
    if (bytes.size() > limit_) bytes.remove_prefix(bytes.size() - limit_);
    text_.append(bytes.data(), bytes.size());
    // Cut when twice full, so that each byte moves at most once.
    if (text_.size() > 2 * limit_) text_.erase(0, text_.size() - limit_);
  }
  absl::string_view text() const {
    absl::string_view all = text_;
    return all.size() > limit_ ? all.substr(all.size() - limit_) : all;
  }

 private:
  const size_t limit_;
  std::string text_;
};

// A child of ours that leads a session of its own: a terminal's Ctrl-C does not reach it.
struct Child {
  os::Child process;
  os::UniqueFd stream;  // our end of the socket that is its stdin
  os::UniqueFd error;   // read end of its stderr
};

// Starts `argv` with our environment. Its stdout is the same socket as its stdin, or, when
// `stdout_apart`, goes where its stderr goes.
absl::StatusOr<Child> StartChild(std::vector<std::string> argv, bool stdout_apart);

// Keeps the end of what a descriptor gives. Owns it. `on_end` is called once, at its end. Loop
// thread.
class TailReader {
 public:
  TailReader(loop::Loop& loop, os::UniqueFd fd, loop::Task on_end);
  absl::string_view text() const { return tail_.text(); }
  bool ended() const { return !fd_; }

 private:
  void Read();
  os::UniqueFd fd_;
  std::unique_ptr<loop::FdWatch> watch_;
  Tail tail_;
  loop::Task on_end_;
};

// How a child is brought to its end after its stdin was closed.
struct EndPolicy {
  Duration patience;         // until SIGTERM
  Duration term_to_kill;     // from then until SIGKILL
  bool whole_group = false;  // signals go to all that the child started in its group
  // How much of the patience is left when we are about to exit ourselves.
  Duration patience_at_exit = Duration::zero();
};

// Sees to the end of children that nobody waits for any more, so that none is left behind, not
// as a zombie either. Loop thread.
class ChildReaper {
 public:
  explicit ChildReaper(loop::Loop& loop);
  // Ends those still there: SIGTERM after their patience_at_exit, SIGKILL after term_to_kill more.
  // Blocks so long.
  ~ChildReaper();
  ChildReaper(const ChildReaper&) = delete;
  ChildReaper& operator=(const ChildReaper&) = delete;

  // The child's stdin is closed. `error` (may be null) is read until its end.
  void Adopt(os::Child child, std::unique_ptr<TailReader> error, EndPolicy policy);

 private:
  struct Orphan;
  using Place = std::list<std::unique_ptr<Orphan>>::iterator;
  void OnExit(Place place);
  void Terminate(Place place);
  loop::Loop& loop_;
  std::list<std::unique_ptr<Orphan>> orphans_;
};

// Signals the child, or its group. It must not have been reaped.
void SignalChild(const os::Child& child, int signal, bool whole_group);

}  // namespace dtrain::transport
