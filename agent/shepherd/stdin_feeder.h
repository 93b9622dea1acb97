// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"

namespace dtrain::shepherd {

// Writes to one worker's stdin as fast as the worker reads. Loop thread.
class StdinFeeder {
 public:
  // Called once for each Write when its data is in the pipe, or with `closed` when the worker
  // reads no more; after that every Write is answered so.
  using OnTaken = absl::AnyInvocable<void(bool closed)>;

  StdinFeeder(loop::Loop& loop, os::UniqueFd pipe, OnTaken on_taken);
  StdinFeeder(const StdinFeeder&) = delete;
  StdinFeeder& operator=(const StdinFeeder&) = delete;

  void Write(absl::string_view data, bool end);
  // The worker is gone.
  void Close();

 private:
  void Flush();
  os::UniqueFd pipe_;
  std::unique_ptr<loop::FdWatch> watch_;
  OnTaken on_taken_;
  std::string pending_;
  size_t written_ = 0;
  bool busy_ = false;  // a Write is not answered yet
  bool end_ = false;
};

}  // namespace dtrain::shepherd
