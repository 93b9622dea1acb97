// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"

namespace dtrain::shepherd {

// Our end of one worker's PMI socket: lines in, lines out, both with bounded buffers. Loop thread.
class PmiConnection {
 public:
  using OnLine = absl::AnyInvocable<void(absl::string_view line)>;  // without its newline

  // A line longer than any that PMI knows is handed over cut, which its parser refuses.
  PmiConnection(loop::Loop& loop, os::UniqueFd socket, OnLine on_line);
  PmiConnection(const PmiConnection&) = delete;
  PmiConnection& operator=(const PmiConnection&) = delete;

  void Send(absl::string_view line);
  // Hands over what the worker sent before it ended.
  void ReadRest();
  // May be called from inside on_line.
  void Close();

 private:
  void Arm();
  bool Read();  // false when there was nothing
  void Write();
  loop::Loop& loop_;
  os::UniqueFd socket_;
  std::unique_ptr<loop::FdWatch> watch_;
  OnLine on_line_;
  std::string in_;
  std::string out_;
  bool reading_ = false;
  bool writing_ = false;
  bool taking_ = false;
};

}  // namespace dtrain::shepherd
