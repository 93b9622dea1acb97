// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"
#include "launcher/detached/journal.h"
#include "launcher/detached/log_segments.h"
#include "launcher/detached/log_times.h"

namespace dtrain::detached {

// Output is synced when its oldest unsynced byte is so old, or when there are so many.
inline constexpr Duration kSyncLogsEvery = std::chrono::seconds(1);
inline constexpr size_t kSyncLogBytes = 8 << 20;

// Keeps the output of an attempt in files so that each byte is there once, whatever crashes: a node
// is told that a byte is safe when the journal says so, which it does when the byte has been
// synced. After a crash files are cut to what the journal says, and the nodes send the rest again.
// A thread does the writing. Loop thread. Destroying it drops what is not written.
class LogStore {
 public:
  struct Piece {
    LogStream stream;
    uint64_t offset = 0;
    std::string bytes;
  };
  struct Callbacks {
    // The journal has these positions: the nodes may be told.
    absl::AnyInvocable<void(const v1::LogPositions&)> on_safe;
    // Called when nothing can be written, with the reason, and with OK once it can be again. It is
    // tried again each second.
    absl::AnyInvocable<void(absl::Status)> on_trouble;
    loop::Task on_progress;  // queued_bytes has become less
  };

  // Of the attempt that `journal` is at.
  LogStore(loop::Loop& loop, Journal& journal, LogPlace place, Callbacks callbacks);
  ~LogStore();
  LogStore(const LogStore&) = delete;
  LogStore& operator=(const LogStore&) = delete;

  // Once, before all else; blocks.
  absl::Status Open();
  // As soon as it is known: segments are smaller where there are many streams.
  void SetWorldSize(uint32_t ranks);
  // How far the stream is: the node is asked for what follows.
  uint64_t end(const LogStream& stream) const;
  // Bytes of the stream from `offset` on. Those that were given before are dropped; a gap means
  // that the node has lost some.
  void Write(const LogStream& stream, uint64_t offset, std::string bytes);
  // Bytes that are not safe yet. Stop reading output while these are many: twice kSyncLogBytes,
  // say.
  size_t queued_bytes() const { return queued_bytes_; }
  // Syncs without delay, and calls `done` when all that was given is safe.
  void Flush(loop::Task done);

 private:
  struct Work {
    LogOffsets cut_to;  // first
    std::vector<Piece> pieces;
    std::string times;  // TimesWriter
    uint64_t segment_bytes = 0;
    bool sync = false;
    absl::Status status;
  };

  void Start();
  void OnDone(Work work);
  void OnFailure(Work work);
  void OnSynced();
  void OnSafe(const v1::LogPositions& positions);
  bool SyncIsDue() const;
  void ReportTrouble(const absl::Status& status);

  loop::Loop& loop_;
  Journal& journal_;
  Callbacks callbacks_;
  const uint32_t attempt_;
  const uint64_t limit_;
  uint64_t segment_bytes_;
  LogOffsets ends_;  // given to Write
  LogOffsets synced_;
  std::vector<Piece> pending_;  // not written
  const std::string log_folder_;
  TimesWriter times_;
  std::string pending_times_;
  std::vector<Piece> unsynced_;  // written, and to be written again if they cannot be synced
  size_t unsynced_bytes_ = 0;
  size_t queued_bytes_ = 0;
  TimePoint sync_at_ = kNever;
  std::vector<loop::Task> flushes_;
  bool running_ = false;
  bool journalling_ = false;
  bool cut_first_ = false;  // the last write or sync has failed
  bool waiting_ = false;    // for retry_
  bool in_trouble_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  loop::Timer sync_timer_;
  loop::Timer retry_;
  std::shared_ptr<LogSegments> segments_;  // while running_ the thread's alone
  loop::BlockingPool thread_{1};
};

}  // namespace dtrain::detached
