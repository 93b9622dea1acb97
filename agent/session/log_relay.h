// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "common/rpc/server_stream.h"
#include "dtrain/v1/agent.pb.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::session {

// Carries the log streams of one job from the shepherd's spool files to the launcher: each stream
// in order and once, the streams in turn, one chunk on its way at a time. The spool is the queue,
// so a launcher that reads slowly costs no memory here. Loop thread.
class LogRelay {
 public:
  using Writer = rpc::ServerWriter<v1::LogChunk>;
  // The launcher's transport has taken everything of the stream before `offset`.
  using OnDelivered = absl::AnyInvocable<void(uint32_t rank, v1::StreamKind, uint64_t offset)>;
  // A spool cannot be read; once. It goes on by itself when it can, while others do.
  using OnStuck = absl::AnyInvocable<void(uint32_t rank, const std::string& why)>;

  LogRelay(loop::Loop& loop, OnDelivered on_delivered, OnStuck on_stuck);
  ~LogRelay();
  LogRelay(const LogRelay&) = delete;
  LogRelay& operator=(const LogRelay&) = delete;

  // The workers of this node, the only ones that may have output. Called before all that follows.
  void Expect(const v1::Report& report);
  // A stream has its spool; with an empty one it only is there. What its user's shepherd, which
  // may be anything, cannot have made of a file of `owner`'s is refused: INVALID_ARGUMENT.
  absl::Status Opened(uint32_t rank, v1::StreamKind stream, os::UniqueFd spool, uid_t owner);
  void Grown(uint32_t rank, v1::StreamKind stream, uint64_t size);
  // No stream grows any more. One that `finished` does not name (the shepherd died) ends where
  // its file does.
  void Finished(const v1::Finished& finished);
  // A reader, from the positions that it names. It takes the place of the one before.
  void Attach(std::shared_ptr<Writer> writer, const v1::LogsRequest& request);

  // For others than the launcher: a piece from `offset` on, or from the first byte after it that
  // the spool still has. Nothing of what the launcher gets changes. NOT_FOUND: no such stream.
  absl::StatusOr<v1::LogPiece> Read(uint32_t rank, v1::StreamKind stream, uint64_t offset,
                                    size_t limit) const;
  // Written so far; 0 for a stream that is not there.
  uint64_t size(uint32_t rank, v1::StreamKind stream) const;

 private:
  using Key = std::pair<uint32_t, v1::StreamKind>;
  struct Stream {
    os::UniqueFd spool;
    uint64_t size = 0;  // as far as known to be written
    uint64_t sent = 0;
    uint64_t reported = 0;  // last offset given to on_delivered_
    bool queued = false;
  };
  Stream& Add(const Key& key);
  uint64_t From(const Key& key) const;
  void Enqueue(const Key& key, Stream& stream);
  void SendNext();
  void Unreadable(const Key& key, Stream& stream, int error);
  void Taken(const Key& key, uint64_t offset);

  loop::Loop& loop_;
  OnDelivered on_delivered_;
  OnStuck on_stuck_;
  std::set<uint32_t> ranks_;  // that may have streams
  std::map<Key, Stream> streams_;
  std::map<Key, uint64_t> from_;  // where the reader began
  std::deque<Key> ready_;         // streams with unsent bytes
  std::shared_ptr<Writer> writer_;
  uint64_t reader_ = 0;  // the how many-th
  bool writing_ = false;
  bool finished_ = false;
  bool told_stuck_ = false;
  std::optional<TimePoint> give_up_at_;  // once finished, as long as nothing can be read
  loop::Timer retry_;
  std::shared_ptr<bool> alive_;
};

}  // namespace dtrain::session
