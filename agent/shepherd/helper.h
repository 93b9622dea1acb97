// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/loop/frame_channel.h"
#include "common/loop/loop.h"
#include "common/os/spawn.h"
#include "common/os/unique_fd.h"

namespace dtrain::shepherd {

// The numbers of a helper's descriptors.
inline constexpr int kHelperChannel = 3;
inline constexpr int kHelperListener = 4;

// A process of the agent's program in another role, which serves the job's ranks at a listening
// socket. Unless it is wanted earlier it is started when somebody first connects, as most jobs have
// nobody who does. It dies with us. Loop thread.
class Helper {
 public:
  struct Hooks {
    // It is about to start: its environment and the first frame for it, or why it must not.
    struct Beginning {
      std::vector<std::string> env;
      std::string frame;
    };
    absl::AnyInvocable<absl::StatusOr<Beginning>()> on_start;
    absl::AnyInvocable<void(absl::Status)> on_not_started;
    absl::AnyInvocable<void(absl::string_view frame)> on_frame;
    // By itself; "was killed by signal 9". AwaitClient may follow.
    absl::AnyInvocable<void(std::string how)> on_ended;
  };
  Helper(loop::Loop& loop, std::string program, std::string role, os::UniqueFd listener,
         Hooks hooks);
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;

  // From now on somebody may come.
  void AwaitClient();
  // Does not wait for anybody. on_not_started is not called.
  absl::Status Start();
  // Nothing happens while it does not run. RESOURCE_EXHAUSTED: the frame is too long.
  absl::Status Send(absl::string_view frame);
  // Our stderr is another now, and becomes that of the helper: by a frame that carries it.
  void MoveLog();
  // What it has said so far.
  void ReadFrames();
  // 0: it does not run.
  pid_t pid() const { return child_ ? child_->pid : 0; }
  // This child of ours has ended. False: it is not ours; else it has been reaped.
  bool OnChild(pid_t pid);
  // Ends it: asks it, for a moment, and kills it. Then `done`, perhaps at once.
  void End(loop::Task done);

 private:
  loop::Loop& loop_;
  const std::string program_, role_;
  Hooks hooks_;
  const os::UniqueFd listener_;
  loop::FdWatch watch_;
  std::optional<os::Child> child_;
  std::unique_ptr<loop::FrameChannel> channel_;
  bool ending_ = false;
  loop::Task done_;  // of End
  loop::Timer patience_;
};

}  // namespace dtrain::shepherd
