// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/log_tails.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace dtrain::status {
namespace {

// A piece that is dropped is dropped whole.
constexpr size_t kBytesOfPiece = size_t{16} << 10;

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

void LogTails::SetWorldSize(uint32_t world_size) {
  const size_t streams = size_t{2} * std::max<uint32_t>(world_size, 1);
  per_stream_ = std::clamp(kMostBytes / streams, kLeastPerStream, kMostPerStream);
}

LogTails::Stream& LogTails::Make(Rank rank, v1::StreamKind stream) {
  return streams_[{rank.value(), stream}];
}

const LogTails::Stream* LogTails::Find(Rank rank, v1::StreamKind stream) const {
  auto it = streams_.find({rank.value(), stream});
  return it == streams_.end() ? nullptr : &it->second;
}

void LogTails::Append(Rank rank, v1::StreamKind kind, absl::string_view bytes) {
  Stream& stream = Make(rank, kind);
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
  std::deque<Run>& order = order_[rank.value()];
  if (order.empty() || order.back().stream != kind) order.push_back({kind, 0});
  order.back().end = stream.range.end;
  if (order.size() > kMostRuns) order.pop_front();
  // A feed that is woken may go away, and others of its stream too.
  const std::vector<TailFeed*> feeds = stream.feeds;
  for (TailFeed* feed : feeds) {
    if (std::find(stream.feeds.begin(), stream.feeds.end(), feed) != stream.feeds.end()) {
      feed->Wake();
    }
  }
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
}

LogTails::Range LogTails::range(Rank rank, v1::StreamKind kind) const {
  const Stream* stream = Find(rank, kind);
  return stream == nullptr ? Range() : stream->range;
}

std::vector<LogTails::Run> LogTails::Order(Rank rank) const {
  const auto at = order_.find(rank.value());
  if (at == order_.end()) return {};
  return {at->second.begin(), at->second.end()};
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

std::unique_ptr<http::Feed> LogTails::Follow(Rank rank, v1::StreamKind stream, uint64_t offset) {
  return std::make_unique<TailFeed>(*this, Make(rank, stream), offset);
}

}  // namespace dtrain::status
