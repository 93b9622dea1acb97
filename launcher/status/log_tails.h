// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/http/message.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::status {

// The last bytes of each worker's output, for those who ask for them over HTTP. What is older is
// gone: a launcher does not grow with its job's logs. Loop thread.
class LogTails {
 public:
  // Each stream keeps its part of kMostBytes, within these bounds.
  static constexpr size_t kMostBytes = size_t{64} << 20;
  static constexpr size_t kMostPerStream = size_t{1} << 20;
  static constexpr size_t kLeastPerStream = size_t{16} << 10;
  // Of a rank; of very many ranks fewer.
  static constexpr size_t kMostRuns = 4096;
  static constexpr size_t kLeastRuns = 256;
  // What comes of one stream so long after its run began is another run.
  static constexpr int64_t kRunNanos = 100'000'000;

  // Bytes of the stream that are kept: offsets [begin, end).
  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  // Before the first Append of an attempt.
  void SetWorldSize(uint32_t world_size);
  void Append(Rank rank, v1::StreamKind stream, absl::string_view bytes, int64_t unix_nanos = 0);
  // Nothing more comes, of any rank: feeds end when they have told all.
  void EndAll();

  Range range(Rank rank, v1::StreamKind stream) const;
  // In which order, and when, what is kept of both streams has come. Of a rank that changes between
  // them often, or writes all the time, the last runs only.
  struct Run {
    v1::StreamKind stream;
    uint64_t end;
    uint64_t begin = 0;
    int64_t unix_nanos = 0;
  };
  std::vector<Run> Order(Rank rank) const;
  // Up to `limit` bytes from `offset` on; empty where none are kept.
  std::string Read(Rank rank, v1::StreamKind stream, uint64_t offset, size_t limit) const;
  // The unfinished line of the rank in this attempt, of the stream that has grown last if both have
  // one.
  std::string Unfinished(Rank rank) const;
  // All ranks with kept output, ascending.
  std::vector<Rank> Ranks() const;
  // Output of several streams in one feed: of each piece a line "RANK stdout|stderr UNIX_NANOS
  // SIZE" (0: when it came is not known), and its bytes. First what is kept, rank by rank, then
  // what comes. With `follow` until EndAll, else up to what there is now.
  struct Which {
    std::optional<Rank> rank = {};
    std::optional<v1::StreamKind> stream = {};
    bool follow = false;
  };
  std::unique_ptr<http::Feed> FollowAll(const Which& which);
  // What comes from `offset` on, until EndAll. A reader that falls behind what is kept is told how
  // many bytes it has missed, and goes on from there. Outlives neither this nor a later EndAll's
  // readers.
  std::unique_ptr<http::Feed> Follow(Rank rank, v1::StreamKind stream, uint64_t offset);

 private:
  class TailFeed;
  class AllFeed;
  struct Stream {
    std::deque<std::string> pieces;
    Range range;
    uint64_t attempt_begin = 0;
    std::vector<TailFeed*> feeds;
  };
  using StreamId = std::pair<uint32_t, int>;

  const Stream* Find(Rank rank, v1::StreamKind stream) const;
  Stream& Make(Rank rank, v1::StreamKind stream);
  void WakeAllFeeds();
  static std::string Read(const Stream& stream, uint64_t offset, size_t limit);

  std::map<StreamId, Stream> streams_;
  struct Runs {
    std::deque<Run> kept;
    uint64_t dropped = 0;  // before them
  };
  std::map<uint32_t, Runs> order_;
  std::vector<AllFeed*> all_feeds_;
  size_t per_stream_ = kMostPerStream;
  size_t most_runs_ = kMostRuns;
  bool ended_ = false;
};

}  // namespace dtrain::status
