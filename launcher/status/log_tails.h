// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
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
  static constexpr size_t kMostRuns = 256;

  // Bytes of the stream that are kept: offsets [begin, end).
  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
  };

  // Before the first Append.
  void SetWorldSize(uint32_t world_size);
  void Append(Rank rank, v1::StreamKind stream, absl::string_view bytes);
  // Nothing more comes, of any rank: feeds end when they have told all.
  void EndAll();

  Range range(Rank rank, v1::StreamKind stream) const;
  // In which order what is kept of both streams has come: of each run of bytes the stream, and the
  // offset at its end. Of a rank that changes between them often, the last runs only.
  struct Run {
    v1::StreamKind stream;
    uint64_t end;
  };
  std::vector<Run> Order(Rank rank) const;
  // Up to `limit` bytes from `offset` on; empty where none are kept.
  std::string Read(Rank rank, v1::StreamKind stream, uint64_t offset, size_t limit) const;
  // What comes from `offset` on, until EndAll. A reader that falls behind what is kept is told how
  // many bytes it has missed, and goes on from there. Outlives neither this nor a later EndAll's
  // readers.
  std::unique_ptr<http::Feed> Follow(Rank rank, v1::StreamKind stream, uint64_t offset);

 private:
  class TailFeed;
  struct Stream {
    std::deque<std::string> pieces;
    Range range;
    std::vector<TailFeed*> feeds;
  };
  using StreamId = std::pair<uint32_t, int>;

  const Stream* Find(Rank rank, v1::StreamKind stream) const;
  Stream& Make(Rank rank, v1::StreamKind stream);
  static std::string Read(const Stream& stream, uint64_t offset, size_t limit);

  std::map<StreamId, Stream> streams_;
  std::map<uint32_t, std::deque<Run>> order_;
  size_t per_stream_ = kMostPerStream;
  bool ended_ = false;
};

}  // namespace dtrain::status
