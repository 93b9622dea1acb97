// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"

namespace dtrain::spawn {

// Copies what a shepherd of another user writes to its stderr into our log: a line at a time,
// escaped, with its author's name, and no more than a few lines a minute. The log itself is not
// that user's to hold. What does not fit waits in the pipe or, once that is full, is lost. Loop
// thread.
class ShepherdWords {
 public:
  // `pipe`: the end to read, non-blocking.
  ShepherdWords(loop::Loop& loop, os::UniqueFd pipe, std::string author);
  // Copies what is there first.
  ~ShepherdWords();
  ShepherdWords(const ShepherdWords&) = delete;
  ShepherdWords& operator=(const ShepherdWords&) = delete;

 private:
  void Await();
  bool ReadSome();  // false: nothing is there now, or ever again
  bool MayWrite();
  void Write(absl::string_view line);

  loop::Loop& loop_;
  const os::UniqueFd pipe_;
  const std::string author_;
  loop::FdWatch watch_;
  loop::Timer pause_;
  std::string begun_;  // a line without its end yet
  TimePoint since_;
  int written_ = 0;  // lines since then
  bool ended_ = false;
};

}  // namespace dtrain::spawn
