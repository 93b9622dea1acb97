// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/log_feed.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <limits>

#include "absl/strings/str_cat.h"
#include "agent/shepherd/log_socket.h"
#include "common/link/log_frame.h"
#include "common/log/log.h"

namespace dtrain::shepherd {
namespace {

// A disk that fails may do so for a moment. When the job is over nobody waits for it for long.
constexpr Duration kRetryRead = std::chrono::milliseconds(100);
constexpr Duration kReadAtEnd = std::chrono::seconds(10);
// Of the reason for which output is lost.
constexpr size_t kMostOfWhy = 1 << 10;

LogFeed::Key KeyOf(const v1::LogPosition& position) { return {position.rank(), position.stream()}; }

}  // namespace

struct LogFeed::Reader {
  struct Place {
    uint64_t next = 0;
    bool queued = false;
  };

  bool is_launcher() const { return !request.has_one(); }
  bool wants(const Key& key) const { return is_launcher() || KeyOf(request.one()) == key; }

  v1::ReadLogs request;
  std::map<Key, Place> places;
  std::deque<Key> ready;  // streams with bytes that were not sent
  uint64_t left = 0;      // of the limit
  uint64_t sent = 0;      // frames
  uint64_t taken = 0;
  std::deque<std::pair<Key, uint64_t>> on_way;  // ends of pieces that are not taken, if they count
  bool end_sent = false;
  std::string lost;
  std::unique_ptr<LogSocket> socket;
};

LogFeed::LogFeed(loop::Loop& loop, OnStuck on_stuck)
    : loop_(loop), on_stuck_(std::move(on_stuck)), lines_timer_(loop), retry_(loop) {}

LogFeed::~LogFeed() = default;

void LogFeed::Add(const Key& key, LogStream& stream) {
  streams_[key] = &stream;
  for (Reader& reader : readers_) Begin(reader, key);
  Grown(key);
}

void LogFeed::Grown(const Key& key) {
  const auto found = streams_.find(key);
  if (found == streams_.end()) return;
  const LogStream& stream = *found->second;
  const uint64_t lines = stream.EndOfLines(lines_.size(key), UnfinishedLines::kMostHeld);
  lines_.OnGrown(loop_.Now(), key, lines, stream.size());
  AwaitLines();
  Enqueue(key);
}

void LogFeed::LetGo(const Key& key) {
  Grown(key);
  lines_.LetGo(key);
  AwaitLines();
  Enqueue(key);
}

void LogFeed::AwaitLines() {
  const TimePoint due = lines_.NextDeadline();
  // A timer that nothing waits for any more may fire: whole lines would set and end one each time.
  if (due == kNever || due == lines_due_) return;
  lines_due_ = due;
  lines_timer_.At(due, [this] { OnLinesDue(); });
}

void LogFeed::OnLinesDue() {
  lines_due_ = kNever;
  for (const Key& key : lines_.OnTime(loop_.Now())) Enqueue(key);
  AwaitLines();
  Pump();
}

void LogFeed::Pump() {
  for (Reader& reader : readers_) reader.socket->Pump();
}

void LogFeed::End() {
  ended_ = true;
  for (const auto& [key, stream] : streams_) LetGo(key);
  Pump();
}

void LogFeed::Serve(v1::ReadLogs request, os::UniqueFd socket) {
  if (!request.has_one()) {
    readers_.remove_if([](const Reader& each) { return each.is_launcher(); });
  }
  const auto place = readers_.emplace(readers_.end());
  Reader& reader = *place;
  reader.request = std::move(request);
  reader.left =
      reader.request.limit() > 0 ? reader.request.limit() : std::numeric_limits<uint64_t>::max();
  LogSocket::Handlers handlers;
  handlers.next = [this, &reader] { return SendNext(reader); };
  handlers.on_ack = [this, &reader](uint64_t frames) { OnAck(reader, frames); };
  handlers.on_closed = [this, place] { readers_.erase(place); };
  auto made = LogSocket::Make(loop_, std::move(socket), std::move(handlers));
  if (!made.ok()) {
    log::Error(absl::StrCat("serve a reader of output: ", made.status().message()));
    readers_.erase(place);
    return;
  }
  reader.socket = *std::move(made);
  for (const auto& [key, stream] : streams_) Begin(reader, key);
  reader.socket->Pump();
}

void LogFeed::WhenAllDelivered(loop::Task task) {
  on_all_delivered_ = std::move(task);
  CheckDelivered();
}

void LogFeed::CheckDelivered() {
  if (on_all_delivered_ == nullptr) return;
  const bool all = std::all_of(streams_.begin(), streams_.end(), [](const auto& each) {
    return each.second->delivered() >= each.second->size();
  });
  if (all) std::exchange(on_all_delivered_, nullptr)();
}

void LogFeed::Begin(Reader& reader, const Key& key) {
  if (!reader.wants(key)) return;
  uint64_t& next = reader.places[key].next;
  if (!reader.is_launcher()) {
    next = std::min(reader.request.one().offset(), streams_[key]->size());
  }
  for (const v1::LogPosition& from : reader.request.from()) {
    if (KeyOf(from) == key) next = from.offset();
  }
  Enqueue(reader, key);
}

// A reader that asked for one piece may have all bytes that there are.
uint64_t LogFeed::EndFor(const Reader& reader, const Key& key) const {
  return reader.request.limit() > 0 ? streams_.at(key)->size() : lines_.passed(key);
}

void LogFeed::Enqueue(const Key& key) {
  for (Reader& reader : readers_) Enqueue(reader, key);
}

void LogFeed::Enqueue(Reader& reader, const Key& key) {
  const auto place = reader.places.find(key);
  if (place == reader.places.end() || place->second.queued) return;
  if (place->second.next >= EndFor(reader, key)) return;
  place->second.queued = true;
  reader.ready.push_back(key);
}

// False: there is nothing to send now.
bool LogFeed::SendNext(Reader& reader) {
  if (reader.end_sent || reader.sent - reader.taken >= link::kLogWindow) return false;
  // One that cannot be read is queued again, behind the others.
  for (size_t tries = reader.ready.size(); tries > 0 && reader.left > 0; --tries) {
    const Key key = reader.ready.front();
    reader.ready.pop_front();
    reader.places[key].queued = false;
    if (SendPiece(reader, key)) return true;
  }
  if (!IsAtEnd(reader)) return false;
  SendEnd(reader);
  return true;
}

bool LogFeed::SendPiece(Reader& reader, const Key& key) {
  const LogStream& stream = *streams_[key];
  uint64_t& next = reader.places[key].next;
  const uint64_t offset = std::max(next, stream.kept_from());
  const uint64_t end = EndFor(reader, key);
  // A reader may begin behind the bytes that are due: the others come when they are.
  if (offset >= end) return false;
  const uint64_t most =
      reader.request.most_data() > 0 ? reader.request.most_data() : link::kMostLogData;
  const size_t room = std::min({uint64_t{link::kMostLogData}, most, end - offset, reader.left});
  const absl::StatusOr<size_t> n = reader.socket->Load(stream, offset, room);
  if (!n.ok()) {
    OnUnreadable(reader, key, n.status());
    return false;
  }
  v1::LogHead head;
  head.mutable_at()->set_rank(key.first);
  head.mutable_at()->set_stream(key.second);
  head.mutable_at()->set_offset(offset);
  reader.socket->Send(head);
  give_up_at_ = kNever;
  next = offset + *n;
  if (reader.request.limit() > 0) reader.left -= *n;
  Enqueue(reader, key);
  ++reader.sent;
  if (reader.request.reclaim()) reader.on_way.emplace_back(key, next);
  return true;
}

// Of a piece that was asked for there is all that can be read now.
bool LogFeed::IsAtEnd(const Reader& reader) const {
  if (reader.request.limit() > 0) return true;
  return ended_ && reader.ready.empty();
}

void LogFeed::SendEnd(Reader& reader) {
  reader.end_sent = true;
  v1::LogHead head;
  v1::LogsEnd& end = *head.mutable_end();
  if (!reader.is_launcher()) {
    const auto stream = streams_.find(KeyOf(reader.request.one()));
    if (stream != streams_.end()) end.set_size(stream->second->size());
  }
  end.set_ended(ended_);
  end.set_lost(reader.lost.substr(0, kMostOfWhy));
  reader.socket->Send(head);
}

void LogFeed::OnAck(Reader& reader, uint64_t frames) {
  last_taken_ = loop_.Now();
  for (; reader.taken < std::min(frames, reader.sent); ++reader.taken) {
    if (reader.on_way.empty()) continue;
    const auto [key, end] = reader.on_way.front();
    reader.on_way.pop_front();
    streams_[key]->Delivered(end);
  }
  CheckDelivered();
}

void LogFeed::OnUnreadable(Reader& reader, const Key& key, const absl::Status& why) {
  if (ended_ && give_up_at_ == kNever) give_up_at_ = loop_.Now() + kReadAtEnd;
  if (reader.request.limit() > 0 || loop_.Now() >= give_up_at_) {
    if (!reader.lost.empty()) return;
    reader.lost = absl::StrCat("output of rank ", key.first, " after byte ",
                               reader.places[key].next, " is lost: ", why.message());
    return;
  }
  if (!std::exchange(told_stuck_, true)) on_stuck_(key.first, why);
  Enqueue(reader, key);
  retry_.After(kRetryRead, [this] { Pump(); });
}

}  // namespace dtrain::shepherd
