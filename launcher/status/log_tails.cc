// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/log_tails.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "launcher/output/standing_text.h"

namespace dtrain::status {
namespace {

// A piece that is dropped is dropped whole.
constexpr size_t kBytesOfPiece = size_t{16} << 10;
constexpr size_t kRunsOfAll = size_t{1} << 19;
constexpr size_t kMostUnfinished = 4096;

}  // namespace

class LogTails::TailFeed : public http::Feed {
 public:
  TailFeed(const LogTails& tails, Stream& stream, uint64_t offset)
      : tails_(tails), stream_(stream), offset_(offset) {
    stream_.feeds.push_back(this);
  }
  ~TailFeed() override { std::erase(stream_.feeds, this); }

  std::string Next(size_t limit) override {
    std::string out;
    if (offset_ < stream_.range.begin) {
      out = absl::StrCat("\n[dtrain: ", stream_.range.begin - offset_,
                         " bytes are no longer available]\n");
      offset_ = stream_.range.begin;
    }
    const std::string more = Read(stream_, offset_, limit);
    offset_ += more.size();
    return out + more;
  }
  bool ended() const override { return tails_.ended_ && offset_ >= stream_.range.end; }
  void Notify(absl::AnyInvocable<void()> task) override {
    if (offset_ < stream_.range.end || ended()) {
      task();
    } else {
      task_ = std::move(task);
    }
  }
  void Wake() {
    if (task_ != nullptr) std::exchange(task_, nullptr)();
  }

 private:
  const LogTails& tails_;
  Stream& stream_;
  uint64_t offset_;
  absl::AnyInvocable<void()> task_;
};

class LogTails::AllFeed : public http::Feed {
 public:
  AllFeed(LogTails& tails, const Which& which) : tails_(tails), which_(which) {
    tails_.all_feeds_.push_back(this);
    if (which_.follow) return;
    for (const auto& [id, stream] : tails_.streams_) until_[id] = stream.range.end;
  }
  ~AllFeed() override { std::erase(tails_.all_feeds_, this); }

  std::string Next(size_t limit) override {
    std::string out;
    while (out.size() < limit && Add(limit, out)) {
    }
    return out;
  }
  bool ended() const override { return (tails_.ended_ || !which_.follow) && !HasMore(); }
  void Notify(absl::AnyInvocable<void()> task) override {
    if (HasMore() || ended()) {
      task();
    } else {
      task_ = std::move(task);
    }
  }
  void Wake() {
    if (task_ != nullptr) std::exchange(task_, nullptr)();
  }

 private:
  uint64_t End(const StreamId& id, const Stream& stream) const {
    if (which_.follow) return stream.range.end;
    const auto at = until_.find(id);
    return at == until_.end() ? 0 : at->second;
  }
  bool IsWanted(const StreamId& id) const {
    return (!which_.rank || which_.rank->value() == id.first) &&
           (!which_.stream || *which_.stream == id.second);
  }
  uint64_t OffsetOf(const StreamId& id) const {
    const auto at = offsets_.find(id);
    return at == offsets_.end() ? 0 : at->second;
  }
  // Of a stream that there is.
  bool HasMore(const StreamId& id) const {
    const auto at = tails_.streams_.find(id);
    return at != tails_.streams_.end() && IsWanted(id) && OffsetOf(id) < End(id, at->second);
  }
  bool HasMore() const {
    return std::any_of(tails_.streams_.begin(), tails_.streams_.end(),
                       [this](const auto& one) { return HasMore(one.first); });
  }
  // One piece, of the rank that has given the last one if it has more.
  bool Add(size_t limit, std::string& out) {
    const auto& streams = tails_.streams_;
    auto at = streams.lower_bound({rank_, 0});
    for (size_t i = 0; i < streams.size(); ++i, ++at) {
      if (at == streams.end()) at = streams.begin();
      if (!HasMore(at->first)) continue;
      rank_ = at->first.first;
      AddOf(limit, out);
      return true;
    }
    return false;
  }
  // Of rank_, which has some.
  void AddOf(size_t limit, std::string& out) {
    const Runs& runs = tails_.order_.at(rank_);
    uint64_t& next = next_run_[rank_];
    for (next = std::max(next, runs.dropped); next < runs.dropped + runs.kept.size(); ++next) {
      const Run& run = runs.kept[static_cast<size_t>(next - runs.dropped)];
      const StreamId id{rank_, run.stream};
      const uint64_t offset = OffsetOf(id);
      const bool is_last = next + 1 == runs.dropped + runs.kept.size();
      if (!IsWanted(id) || offset >= run.end || offset >= End(id, tails_.streams_.at(id))) {
        if (is_last) break;  // it may grow
        continue;
      }
      // What comes before the first run that is known came at a time that is not.
      const bool in_run = offset >= run.begin;
      return AddPiece(id, in_run ? run.end : run.begin, in_run ? run.unix_nanos : 0, limit, out);
    }
    for (const v1::StreamKind kind : {v1::STREAM_KIND_STDOUT, v1::STREAM_KIND_STDERR}) {
      const StreamId id{rank_, kind};
      if (HasMore(id)) return AddPiece(id, End(id, tails_.streams_.at(id)), 0, limit, out);
    }
  }
  void AddPiece(const StreamId& id, uint64_t until, int64_t unix_nanos, size_t limit,
                std::string& out) {
    const Stream& stream = tails_.streams_.at(id);
    const bool is_first = offsets_.count(id) == 0;
    uint64_t& offset = offsets_[id];
    std::string bytes;
    if (offset < stream.range.begin) {
      // What is gone before the first byte that is shown was never promised.
      if (!is_first) {
        bytes = absl::StrCat("\n[dtrain: ", stream.range.begin - offset,
                             " bytes are no longer available]\n");
      }
      offset = stream.range.begin;
    }
    const uint64_t end = std::max(offset, std::min(until, End(id, stream)));
    const std::string more =
        LogTails::Read(stream, offset, std::min<size_t>(limit, static_cast<size_t>(end - offset)));
    offset += more.size();
    bytes += more;
    if (bytes.empty()) return;
    absl::StrAppend(&out, id.first, id.second == v1::STREAM_KIND_STDERR ? " stderr " : " stdout ",
                    unix_nanos, " ", bytes.size(), "\n", bytes);
  }

  LogTails& tails_;
  const Which which_;
  std::map<StreamId, uint64_t> until_;  // unless it follows
  std::map<StreamId, uint64_t> offsets_;
  std::map<uint32_t, uint64_t> next_run_;  // of a rank: all before it were given
  uint32_t rank_ = 0;
  absl::AnyInvocable<void()> task_;
};

void LogTails::WakeAllFeeds() {
  // One that is woken may go away, and others too.
  const std::vector<AllFeed*> feeds = all_feeds_;
  for (AllFeed* feed : feeds) {
    if (std::find(all_feeds_.begin(), all_feeds_.end(), feed) != all_feeds_.end()) feed->Wake();
  }
}

std::unique_ptr<http::Feed> LogTails::FollowAll(const Which& which) {
  return std::make_unique<AllFeed>(*this, which);
}

std::vector<Rank> LogTails::Ranks() const {
  std::vector<Rank> ranks;
  for (const auto& [id, stream] : streams_) {
    if (ranks.empty() || ranks.back().value() != id.first) ranks.push_back(Rank(id.first));
  }
  return ranks;
}

void LogTails::SetWorldSize(uint32_t world_size) {
  const size_t streams = size_t{2} * std::max<uint32_t>(world_size, 1);
  per_stream_ = std::clamp(kMostBytes / streams, kLeastPerStream, kMostPerStream);
  most_runs_ = std::clamp(kRunsOfAll / streams, kLeastRuns, kMostRuns);
  for (auto& [id, stream] : streams_) stream.attempt_begin = stream.range.end;
}

LogTails::Stream& LogTails::Make(Rank rank, v1::StreamKind stream) {
  return streams_[{rank.value(), stream}];
}

const LogTails::Stream* LogTails::Find(Rank rank, v1::StreamKind stream) const {
  auto it = streams_.find({rank.value(), stream});
  return it == streams_.end() ? nullptr : &it->second;
}

void LogTails::Append(Rank rank, v1::StreamKind kind, absl::string_view bytes, int64_t unix_nanos) {
  Stream& stream = Make(rank, kind);
  const uint64_t begin = stream.range.end;
  while (!bytes.empty()) {
    if (stream.pieces.empty() || stream.pieces.back().size() >= kBytesOfPiece) {
      stream.pieces.emplace_back().reserve(std::min(kBytesOfPiece, per_stream_));
    }
    std::string& last = stream.pieces.back();
    const size_t n = std::min(bytes.size(), kBytesOfPiece - last.size());
    last.append(bytes.data(), n);
    bytes.remove_prefix(n);
    stream.range.end += n;
    while (stream.range.end - stream.range.begin > per_stream_ && stream.pieces.size() > 1) {
      stream.range.begin += stream.pieces.front().size();
      stream.pieces.pop_front();
    }
  }
  Runs& runs = order_[rank.value()];
  std::deque<Run>& order = runs.kept;
  if (order.empty() || order.back().stream != kind ||
      unix_nanos - order.back().unix_nanos >= kRunNanos) {
    order.push_back({kind, 0, begin, unix_nanos});
  }
  order.back().end = stream.range.end;
  if (order.size() > most_runs_) {
    order.pop_front();
    ++runs.dropped;
  }
  // A feed that is woken may go away, and others of its stream too.
  const std::vector<TailFeed*> feeds = stream.feeds;
  for (TailFeed* feed : feeds) {
    if (std::find(stream.feeds.begin(), stream.feeds.end(), feed) != stream.feeds.end()) {
      feed->Wake();
    }
  }
  WakeAllFeeds();
}

void LogTails::EndAll() {
  ended_ = true;
  for (auto& [id, stream] : streams_) {
    const std::vector<TailFeed*> feeds = stream.feeds;
    for (TailFeed* feed : feeds) {
      if (std::find(stream.feeds.begin(), stream.feeds.end(), feed) != stream.feeds.end()) {
        feed->Wake();
      }
    }
  }
  WakeAllFeeds();
}

LogTails::Range LogTails::range(Rank rank, v1::StreamKind kind) const {
  const Stream* stream = Find(rank, kind);
  return stream == nullptr ? Range() : stream->range;
}

std::vector<LogTails::Run> LogTails::Order(Rank rank) const {
  const auto at = order_.find(rank.value());
  if (at == order_.end()) return {};
  return {at->second.kept.begin(), at->second.kept.end()};
}

std::string LogTails::Read(Rank rank, v1::StreamKind kind, uint64_t offset, size_t limit) const {
  const Stream* stream = Find(rank, kind);
  return stream == nullptr ? "" : Read(*stream, offset, limit);
}

std::string LogTails::Read(const Stream& stream, uint64_t offset, size_t limit) {
  std::string out;
  uint64_t begin = stream.range.begin;
  for (const std::string& piece : stream.pieces) {
    const uint64_t end = begin + piece.size();
    if (offset < end && out.size() < limit) {
      const auto from = static_cast<size_t>(std::max(offset, begin) - begin);
      out.append(piece, from, std::min(piece.size() - from, limit - out.size()));
    }
    begin = end;
  }
  return out;
}

std::string LogTails::Unfinished(Rank rank) const {
  const auto order = order_.find(rank.value());
  if (order == order_.end()) return "";
  const v1::StreamKind last = order->second.kept.back().stream;
  for (const v1::StreamKind kind :
       {last, last == v1::STREAM_KIND_STDERR ? v1::STREAM_KIND_STDOUT : v1::STREAM_KIND_STDERR}) {
    const Stream* const stream = Find(rank, kind);
    if (stream == nullptr || stream->pieces.empty() || stream->pieces.back().back() == '\n') {
      continue;
    }
    const auto [begin, end] = stream->range;
    const uint64_t from =
        std::max({begin, stream->attempt_begin, end - std::min<uint64_t>(end, kMostUnfinished)});
    std::string line = output::UnfinishedLine(Read(rank, kind, from, kMostUnfinished));
    if (!line.empty()) return line;
  }
  return "";
}

std::unique_ptr<http::Feed> LogTails::Follow(Rank rank, v1::StreamKind stream, uint64_t offset) {
  return std::make_unique<TailFeed>(*this, Make(rank, stream), offset);
}

}  // namespace dtrain::status
