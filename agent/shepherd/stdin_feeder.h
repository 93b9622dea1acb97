// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"

namespace dtrain::shepherd {

// Writes to one worker's stdin as fast as the worker reads. Loop thread.
class StdinFeeder {
 public:
  struct Taken {
    bool closed = false;  // the worker reads no more
    size_t unread = 0;   // with `closed`: bytes of the last Write that nobody has read; if that was
                         // answered already, as many as can be: of one that is on its way, all
    bool waits = false;  // it waits for input, and there is none; of a terminal only
  };
  // Called once for each Write when its data has been read, or when nobody will read it; after that
  // every Write is answered so. And once whenever the worker begins to wait.
  using OnTaken = absl::AnyInvocable<void(const Taken& taken)>;

  // `worker` reads from the pipe, or a process that it has started. `is_terminal`: what the user
  // types is the worker's only while it waits for input.
  StdinFeeder(loop::Loop& loop, os::UniqueFd pipe, pid_t worker, bool is_terminal,
              OnTaken on_taken);
  StdinFeeder(const StdinFeeder&) = delete;
  StdinFeeder& operator=(const StdinFeeder&) = delete;

  void Write(absl::string_view data, bool end);
  // The worker is gone.
  void Close();

 private:
  void Flush();
  void AwaitReader();
  void LookForWaiting();
  size_t InPipe() const;

  loop::Loop& loop_;
  os::UniqueFd pipe_;
  const pid_t worker_;
  std::string pipe_name_;  // as /proc has it; empty: it is not asked who waits
  std::unique_ptr<loop::FdWatch> watch_;
  OnTaken on_taken_;
  std::string pending_;
  size_t written_ = 0;
  bool busy_ = false;  // a Write is not answered yet
  bool end_ = false;
  loop::Timer timer_;
  Duration pause_{};
  TimePoint unknown_since_ = kNever;  // whether it waits
};

}  // namespace dtrain::shepherd
