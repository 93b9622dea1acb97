// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"

namespace dtrain::shepherd {

// Our end of one worker's PMI socket: lines or frames in and out, with bounded buffers. Loop
// thread.
class PmiConnection {
 public:
  // A line without its newline, or a frame with its header. True: frames come from here on.
  using OnMessage = absl::AnyInvocable<bool(absl::string_view message)>;

  // What is longer than any line of PMI, or has no length of a frame in front, is handed over cut,
  // which its parser refuses.
  PmiConnection(loop::Loop& loop, os::UniqueFd socket, OnMessage on_message);
  PmiConnection(const PmiConnection&) = delete;
  PmiConnection& operator=(const PmiConnection&) = delete;

  void Send(absl::string_view message);
  // Hands over what the worker sent before it ended.
  void ReadRest();
  // May be called from inside on_message.
  void Close();

 private:
  void Arm();
  bool Read();  // false when there was nothing
  // Takes the next whole message out of what has come.
  std::optional<std::string> Next();
  void Write();
  loop::Loop& loop_;
  os::UniqueFd socket_;
  std::unique_ptr<loop::FdWatch> watch_;
  OnMessage on_message_;
  std::string in_;
  std::string out_;
  bool frames_ = false;
  bool reading_ = false;
  bool writing_ = false;
  bool taking_ = false;
};

}  // namespace dtrain::shepherd
