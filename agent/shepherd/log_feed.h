// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "agent/shepherd/log_stream.h"
#include "agent/shepherd/unfinished_lines.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::shepherd {

// Sends the workers' output to its readers, each over a socket of its own: from the spools, a piece
// at a time, as fast as the reader takes it, the streams in turn. The spool is the queue, so a slow
// reader costs no memory. A reader that follows a stream gets its unfinished line as
// UnfinishedLines decides. Loop thread.
class LogFeed {
 public:
  using Key = UnfinishedLines::Key;
  // A spool cannot be read; once. It is tried again until ten seconds after the end.
  using OnStuck = absl::AnyInvocable<void(uint32_t rank, const absl::Status& why)>;

  LogFeed(loop::Loop& loop, OnStuck on_stuck);
  ~LogFeed();
  LogFeed(const LogFeed&) = delete;
  LogFeed& operator=(const LogFeed&) = delete;

  // `stream` outlives this.
  void Add(const Key& key, LogStream& stream);
  // What has grown is sent by the next Pump.
  void Grown(const Key& key);
  // The same, and its unfinished line waits no longer.
  void LetGo(const Key& key);
  void Pump();
  // No stream grows any more, and none is added.
  void End();
  // Serves a reader until its socket closes.
  void Serve(v1::ReadLogs request, os::UniqueFd socket);
  // When a reader last said that it has taken something.
  TimePoint last_taken() const { return last_taken_; }
  // Calls `task` when all that was written has been delivered; now, if that is so.
  void WhenAllDelivered(loop::Task task);

 private:
  struct Reader;

  void Begin(Reader& reader, const Key& key);
  void Enqueue(const Key& key);
  void Enqueue(Reader& reader, const Key& key);
  uint64_t EndFor(const Reader& reader, const Key& key) const;
  void AwaitLines();
  void OnLinesDue();
  bool SendNext(Reader& reader);
  bool SendPiece(Reader& reader, const Key& key);
  bool IsAtEnd(const Reader& reader) const;
  void SendEnd(Reader& reader);
  void OnAck(Reader& reader, uint64_t frames);
  void OnUnreadable(Reader& reader, const Key& key, const absl::Status& why);
  void CheckDelivered();

  loop::Loop& loop_;
  OnStuck on_stuck_;
  std::map<Key, LogStream*> streams_;
  std::list<Reader> readers_;
  UnfinishedLines lines_;
  TimePoint lines_due_ = kNever;  // as lines_timer_ knows
  loop::Timer lines_timer_;
  bool ended_ = false;
  bool told_stuck_ = false;
  TimePoint give_up_at_ = kNever;  // once ended, as long as a spool cannot be read
  loop::Timer retry_;
  TimePoint last_taken_{};
  loop::Task on_all_delivered_;
};

}  // namespace dtrain::shepherd
