// SPDX-License-Identifier: Apache-2.0
#include "launcher/detached/log_store.h"

#include <iterator>
#include <utility>

#include "absl/time/clock.h"

namespace dtrain::detached {
namespace {

// Of small pieces one write is made.
constexpr size_t kMergeBelow = 256 << 10;

LogOffsets OffsetsOf(const v1::JournalState& state) {
  LogOffsets offsets;
  for (const v1::LogPosition& at : state.logs_safe()) {
    offsets[{Rank(at.rank()), at.stream() == v1::STREAM_KIND_STDERR}] = at.offset();
  }
  return offsets;
}

absl::Status Carry(LogSegments& segments, const LogOffsets& cut_to,
                   const std::vector<LogStore::Piece>& pieces, uint64_t segment_bytes, bool sync) {
  segments.SetSegmentBytes(segment_bytes);
  for (const auto& [stream, offset] : cut_to) {
    if (absl::Status cut = segments.CutTo(stream, offset); !cut.ok()) return cut;
  }
  for (const LogStore::Piece& piece : pieces) {
    absl::Status written = segments.Write(piece.stream, piece.offset, piece.bytes);
    if (!written.ok()) return written;
  }
  return sync ? segments.Sync() : absl::OkStatus();
}

}  // namespace

LogStore::LogStore(loop::Loop& loop, Journal& journal, LogPlace place, Callbacks callbacks)
    : loop_(loop),
      journal_(journal),
      callbacks_(std::move(callbacks)),
      attempt_(journal.state().attempt().attempt()),
      limit_(place.limit),
      segment_bytes_(SegmentBytes(limit_, journal.state().runs().world_size())),
      ends_(OffsetsOf(journal.state())),
      synced_(ends_),
      log_folder_(place.folder),
      times_(TimesBytes(log_folder_)),
      sync_timer_(loop),
      retry_(loop),
      segments_(std::make_shared<LogSegments>(std::move(place), segment_bytes_)) {}

LogStore::~LogStore() { *alive_ = false; }

absl::Status LogStore::Open() { return segments_->Open(synced_); }

void LogStore::SetWorldSize(uint32_t ranks) { segment_bytes_ = SegmentBytes(limit_, ranks); }

uint64_t LogStore::end(const LogStream& stream) const {
  const auto at = ends_.find(stream);
  return at == ends_.end() ? 0 : at->second;
}

void LogStore::Write(const LogStream& stream, uint64_t offset, std::string bytes) {
  DTRAIN_ON_THREAD(loop_);
  uint64_t& end = ends_[stream];
  if (offset < end) {
    const uint64_t known = end - offset;
    if (known >= bytes.size()) return;
    bytes.erase(0, known);
    offset = end;
  }
  if (bytes.empty()) return;
  end = offset + bytes.size();
  pending_times_ += times_.Note(stream, offset, absl::GetCurrentTimeNanos());
  queued_bytes_ += bytes.size();
  Piece* last = pending_.empty() ? nullptr : &pending_.back();
  if (last != nullptr && last->stream == stream && last->bytes.size() < kMergeBelow &&
      last->offset + last->bytes.size() == offset) {
    last->bytes += bytes;
  } else {
    pending_.push_back({stream, offset, std::move(bytes)});
  }
  if (!running_ && !waiting_) Start();
}

void LogStore::Flush(loop::Task done) {
  flushes_.push_back(std::move(done));
  if (!running_ && !waiting_) Start();
}

bool LogStore::SyncIsDue() const {
  return !journalling_ &&
         (unsynced_bytes_ >= kSyncLogBytes || !flushes_.empty() || sync_at_ <= loop_.Now());
}

void LogStore::Start() {
  Work work;
  work.pieces = std::exchange(pending_, {});
  work.times = std::exchange(pending_times_, {});
  work.segment_bytes = segment_bytes_;
  for (const Piece& piece : work.pieces) unsynced_bytes_ += piece.bytes.size();
  if (sync_at_ == kNever && unsynced_bytes_ > 0) {
    sync_at_ = loop_.Now() + kSyncLogsEvery;
    sync_timer_.At(sync_at_, [this] {
      if (!running_ && !waiting_) Start();
    });
  }
  work.sync = unsynced_bytes_ > 0 && SyncIsDue();
  if (work.pieces.empty() && !work.sync) {
    if (unsynced_bytes_ == 0 && !journalling_) {
      for (loop::Task& done : std::exchange(flushes_, {})) loop_.Post(std::move(done));
    }
    return;
  }
  if (std::exchange(cut_first_, false)) {
    for (const Piece& piece : work.pieces) {
      const auto at = synced_.find(piece.stream);
      work.cut_to[piece.stream] = at == synced_.end() ? 0 : at->second;
    }
  }
  running_ = true;
  auto shared = std::make_shared<Work>(std::move(work));
  auto task = [this, alive = alive_, &loop = loop_, segments = segments_, folder = log_folder_,
               shared] {
    AddTimes(folder, shared->times);
    shared->status =
        Carry(*segments, shared->cut_to, shared->pieces, shared->segment_bytes, shared->sync);
    loop.Post([this, alive, shared] {
      if (*alive) OnDone(std::move(*shared));
    });
  };
  // Without a thread the loop waits for the disk.
  if (!thread_.TryRun(task).ok()) task();
}

void LogStore::OnDone(Work work) {
  running_ = false;
  if (!work.status.ok()) return OnFailure(std::move(work));
  unsynced_.insert(unsynced_.end(), std::make_move_iterator(work.pieces.begin()),
                   std::make_move_iterator(work.pieces.end()));
  const std::shared_ptr<bool> alive = alive_;
  if (work.sync) OnSynced();
  if (*alive && !running_) Start();
}

// All that is not synced is written again.
void LogStore::OnFailure(Work work) {
  const auto append = [](std::vector<Piece>& to, std::vector<Piece>& from) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  };
  append(unsynced_, work.pieces);
  append(unsynced_, pending_);
  pending_ = std::exchange(unsynced_, {});
  unsynced_bytes_ = 0;
  cut_first_ = true;
  waiting_ = true;
  retry_.After(kJournalRetry, [this] {
    waiting_ = false;
    Start();
  });
  ReportTrouble(work.status);
}

void LogStore::OnSynced() {
  v1::JournalRecord record;
  record.mutable_logs_safe()->set_attempt(attempt_);
  LogOffsets synced;
  size_t bytes = 0;
  for (const Piece& piece : std::exchange(unsynced_, {})) {
    synced[piece.stream] = piece.offset + piece.bytes.size();
    bytes += piece.bytes.size();
  }
  for (const auto& [stream, offset] : synced) {
    synced_[stream] = offset;
    v1::LogPosition& at = *record.mutable_logs_safe()->mutable_positions()->add_streams();
    at.set_rank(stream.rank.value());
    at.set_stream(stream.is_stderr ? v1::STREAM_KIND_STDERR : v1::STREAM_KIND_STDOUT);
    at.set_offset(offset);
  }
  unsynced_bytes_ = 0;
  queued_bytes_ -= bytes;
  sync_at_ = kNever;
  sync_timer_.Cancel();
  journalling_ = true;
  const v1::LogPositions positions = record.logs_safe().positions();
  absl::Status told = journal_.Append(std::move(record), [this, alive = alive_, positions] {
    if (*alive) OnSafe(positions);
  });
  const std::shared_ptr<bool> alive = alive_;
  if (!told.ok()) {  // the job is over for the journal: nobody needs to be told
    journalling_ = false;
    ReportTrouble(told);
  } else {
    ReportTrouble(absl::OkStatus());
  }
  if (*alive && callbacks_.on_progress) callbacks_.on_progress();
}

void LogStore::OnSafe(const v1::LogPositions& positions) {
  journalling_ = false;
  const std::shared_ptr<bool> alive = alive_;
  if (callbacks_.on_safe) callbacks_.on_safe(positions);
  if (*alive && !running_ && !waiting_) Start();
}

void LogStore::ReportTrouble(const absl::Status& status) {
  if (in_trouble_ == !status.ok()) return;
  in_trouble_ = !status.ok();
  if (callbacks_.on_trouble) callbacks_.on_trouble(status);
}

}  // namespace dtrain::detached
