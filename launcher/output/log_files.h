// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"
#include "common/os/file_lock.h"
#include "dtrain/v1/job.pb.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/output/line_splitter.h"

namespace dtrain::output {

// Of what Lack says: people who were not there are told, too.
inline constexpr absl::string_view kLackBegins = "output is missing in the log files";

// Which files there are.
struct LogNames {
  std::string flag;        // what asked for them, for messages
  std::string folder;      // made by Open
  bool one_stream = true;  // each stream has a file of its own; false: both of a rank share one
  std::function<std::string(Rank, v1::StreamKind)> name;  // below `folder`, with folders
  bool goes_on = false;  // what is in them is this job's, and stays
  // The file in `folder` whose lock keeps other jobs from the same files, and what they are told of
  // who has it; empty: there is none.
  std::string lock = {}, holder = {};
  v1::OutputLost lost = {};  // with launchers before us
};

// --log-dir: rank-00003.out and rank-00003.err.
LogNames NamesInDirectory(std::string folder);

// --log-dir and --output: the bytes as the workers wrote them, or whole lines where two streams
// share a file. Files of an earlier job are overwritten (goes_on: none is), links are not followed.
// A thread does the writing, in order, or Write itself where the system gives none. Loop thread.
class LogFiles {
 public:
  struct Callbacks {
    // A write failed, or (DATA_LOSS) somebody else has removed or cut a file: the first of either.
    absl::AnyInvocable<void(absl::Status)> on_error;
    loop::Task on_progress;  // queued_bytes has become less
    // Files that lack more than they did: at most each second, and before Finish's task.
    absl::AnyInvocable<void(v1::OutputLost)> on_lost = {};
  };

  LogFiles(loop::Loop& loop, LogNames names, Callbacks callbacks);
  ~LogFiles();  // drops what is not written
  LogFiles(const LogFiles&) = delete;
  LogFiles& operator=(const LogFiles&) = delete;

  // Makes the folder where it is missing. Fails with the path and the cause; UNAVAILABLE: another
  // job writes there. A job that goes on does so without the files then.
  absl::Status Open();

  void Write(Rank rank, v1::StreamKind stream, absl::string_view bytes);
  // The stream is over: its file is there, even if empty, and has its last line.
  void End(Rank rank, v1::StreamKind stream);
  size_t queued_bytes() const { return queued_bytes_; }
  // No stream has more. Calls `task` when all that was given is written or has failed, and another
  // job may have the files.
  void Finish(loop::Task task);
  // Which files lack what since when, and why; so does what is still not written. Empty: nothing.
  std::string Lack() const;
  // The same for launchers after us.
  v1::OutputLost Lost() const;

 private:
  struct Directory;
  using StreamId = std::pair<uint32_t, int>;

  void FlushLine(const StreamId& id, LineSplitter& line);
  void Queue(Rank rank, v1::StreamKind stream, std::string bytes);
  void Done(const std::string& name, size_t bytes, size_t missing, absl::Status status);
  void Lose(const std::string& name, size_t bytes, const absl::Status& why);
  void TellLosses();
  absl::Status Lock();
  void Unlock();

  loop::Loop& loop_;
  const LogNames names_;
  Callbacks callbacks_;
  size_t queued_bytes_ = 0;
  size_t queued_writes_ = 0;
  bool failed_ = false;                         // told
  bool changed_ = false;                        // told
  std::map<std::string, v1::FileLoss> losses_;  // by file
  std::string why_;                             // the first was lost
  std::set<std::string> untold_;                // of them
  loop::Timer telling_;
  Duration tell_after_;
  absl::Status without_;  // why a job that goes on has no files
  loop::Task when_idle_;
  std::map<StreamId, LineSplitter> lines_;  // that have not ended, unless one_stream
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::shared_ptr<Directory> directory_;  // after Open the thread's alone
  std::optional<os::FileLock> lock_;
  loop::BlockingPool thread_{1};
};

}  // namespace dtrain::output
