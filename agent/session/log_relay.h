// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "agent/session/log_source.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"
#include "common/rpc/server_stream.h"
#include "dtrain/v1/agent.pb.h"
#include "dtrain/v1/shepherd.pb.h"

namespace dtrain::session {

// Carries the output of one job from its shepherd to those who read it: the launcher, and up to
// kMostOthers others. Each has a socket to the shepherd and one chunk in memory, which is not
// parsed on its way. Loop thread.
class LogRelay {
 public:
  static constexpr size_t kMostOthers = 16;
  using Writer = rpc::ServerWriter<v1::LogChunk>;
  using OnRead = absl::AnyInvocable<void(absl::StatusOr<v1::LogPiece>)>;
  struct Handlers {
    // Asks the shepherd; the socket that it answers on. UNAVAILABLE: it is gone.
    absl::AnyInvocable<absl::StatusOr<os::UniqueFd>(const v1::ReadLogs&)> ask;
    // It did what no shepherd of ours does. May destroy this.
    absl::AnyInvocable<void(std::string why)> on_broken;
  };

  // `reclaim`: the shepherd need not keep what the launcher's transport has taken.
  LogRelay(loop::Loop& loop, bool reclaim, Handlers handlers);
  ~LogRelay();
  LogRelay(const LogRelay&) = delete;
  LogRelay& operator=(const LogRelay&) = delete;

  // As the shepherd says: which workers there are, the only ones that may have output, and how much
  // they have written.
  void Reported(const v1::Report& report);
  // False: it has ranks that no report had before.
  bool Knows(const v1::JobOnNode& job) const;
  // INVALID_ARGUMENT: it names ranks that are not on this node.
  absl::Status Finished(const v1::Finished& finished);
  uint64_t size(uint32_t rank, v1::StreamKind stream) const;

  // The launcher's reader, from the positions that it names. It takes the place of the one before.
  void Attach(std::shared_ptr<Writer> writer, const v1::LogsRequest& request);

  // From now on the shepherd is to keep what the launcher does not name as taken. Returns up to
  // where it may have forgotten.
  v1::LogPositions KeepTaken();

  // For others: a piece from `offset` on, or from the first byte after it that the spool still has.
  // Nothing of what the launcher gets changes. NOT_FOUND: no such stream.
  void Read(const v1::ReadLogRequest& request, OnRead done);
  // A stream from there on as it grows, until it is over. RESOURCE_EXHAUSTED: too many read
  // already.
  absl::StatusOr<std::shared_ptr<LogSource>> Follow(const v1::ReadLogRequest& request,
                                                    LogSource::Handlers handlers);

 private:
  using Key = std::pair<uint32_t, v1::StreamKind>;
  struct Reading;

  absl::Status Known(uint32_t rank, v1::StreamKind stream) const;
  absl::StatusOr<std::shared_ptr<LogSource>> Open(const v1::ReadLogs& request,
                                                  LogSource::Handlers handlers);
  absl::StatusOr<std::shared_ptr<LogSource>> OpenForOthers(v1::ReadLogs request,
                                                           LogSource::Handlers handlers);
  void OpenForLauncher();
  void Forward(const v1::LogPosition& at, const link::SharedBytes& data);
  void Taken(uint64_t reader, bool ok);
  void EndLauncher(const absl::StatusOr<v1::LogsEnd>& how);
  void Drop(std::string lost);
  std::string Lost() const;

  loop::Loop& loop_;
  bool reclaim_;
  Handlers handlers_;
  std::set<uint32_t> ranks_;  // that may have output
  bool started_ = false;
  bool finished_ = false;
  std::map<Key, uint64_t> sizes_;  // as last heard
  // The launcher's reader.
  std::shared_ptr<Writer> writer_;
  std::shared_ptr<LogSource> source_;
  uint32_t most_data_ = 0;
  std::map<Key, uint64_t> sent_;  // where it is
  bool reclaims_ = false;         // what source_ was asked
  bool over_ = false;             // it has all there is, or why not
  bool writing_ = false;          // a piece is on its way to it
  uint64_t reader_ = 0;           // the how many-th
  // Others'.
  std::vector<std::weak_ptr<LogSource>> others_;
  std::list<std::shared_ptr<Reading>> readings_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dtrain::session
