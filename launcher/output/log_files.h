// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::output {

// --log-dir: rank-00003.out and rank-00003.err, the bytes as the workers wrote them. Files of an
// earlier job are overwritten, links are not followed. A thread does the writing, in order, or
// Write itself where the system gives none. Loop thread.
class LogFiles {
 public:
  struct Callbacks {
    // A write failed, or (DATA_LOSS) somebody else has removed or cut a file: the first of either.
    absl::AnyInvocable<void(absl::Status)> on_error;
    loop::Task on_progress;  // queued_bytes has become less
  };

  LogFiles(loop::Loop& loop, std::string dir, Callbacks callbacks);
  ~LogFiles();  // drops what is not written
  LogFiles(const LogFiles&) = delete;
  LogFiles& operator=(const LogFiles&) = delete;

  // Makes the directory where it is missing. Fails with the path and the cause.
  absl::Status Open();

  // Without bytes it makes sure that the file is there.
  void Write(Rank rank, v1::StreamKind stream, absl::string_view bytes);
  size_t queued_bytes() const { return queued_bytes_; }
  // Calls `task` when all that was given is written or has failed; one at a time.
  void WhenIdle(loop::Task task);

 private:
  struct Directory;
  void Done(size_t bytes, absl::Status status);

  loop::Loop& loop_;
  const std::string dir_;
  Callbacks callbacks_;
  size_t queued_bytes_ = 0;
  size_t queued_writes_ = 0;
  bool failed_ = false;   // told
  bool changed_ = false;  // told
  loop::Task when_idle_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::shared_ptr<Directory> directory_;  // after Open the thread's alone
  loop::BlockingPool thread_{1};
};

// "rank-00003.out"
std::string LogFileName(Rank rank, v1::StreamKind stream);

}  // namespace dtrain::output
