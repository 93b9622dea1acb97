// SPDX-License-Identifier: Apache-2.0
#include "agent/session/log_relay.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "common/log/log.h"
#include "common/rpc/shared_slice.h"

namespace dtrain::session {
namespace {

// A shepherd answers at once; one that does not is stopped or hangs.
constexpr Duration kReadTimeout = std::chrono::seconds(10);
// In one piece: there may be many of them, and none is in a hurry.
constexpr uint32_t kMostForOthers = 128 << 10;
// Of why output is lost.
constexpr size_t kMostOfWhy = 600;

std::string After(uint32_t rank, uint64_t offset) {
  return absl::StrCat("output of rank ", rank, " after byte ", offset);
}

}  // namespace

// Of a piece that was asked for.
struct LogRelay::Reading {
  explicit Reading(loop::Loop& loop) : timer(loop) {}
  void Finish(absl::StatusOr<v1::LogPiece> answer) {
    if (done != nullptr) std::exchange(done, nullptr)(std::move(answer));
  }
  // False: it is too much.
  bool Take(const v1::LogPosition& at, const link::SharedBytes& data) {
    std::string& bytes = *piece.mutable_data();
    // Some of it was dropped meanwhile.
    if (at.offset() != piece.offset() + bytes.size()) bytes.clear();
    if (bytes.empty()) piece.set_offset(at.offset());
    if (data.size() > limit - bytes.size()) return false;
    bytes.append(data.view().data(), data.size());
    return true;
  }
  std::shared_ptr<LogSource> source;
  v1::LogPiece piece;
  size_t limit = 0;
  OnRead done;
  loop::Timer timer;
};

LogRelay::LogRelay(loop::Loop& loop, bool reclaim, Handlers handlers)
    : loop_(loop), reclaim_(reclaim), handlers_(std::move(handlers)) {}

LogRelay::~LogRelay() {
  *alive_ = false;
  if (writer_ != nullptr) writer_->Finish(absl::CancelledError("the session ended"));
  for (const auto& each : std::exchange(others_, {})) {
    if (const auto source = each.lock()) {
      source->End(absl::UnavailableError("the job is over, and its output is gone"));
    }
  }
}

bool LogRelay::Knows(const v1::JobOnNode& job) const {
  return ranks_.empty() ||
         std::all_of(job.ranks().begin(), job.ranks().end(),
                     [this](const v1::RankOnNode& each) { return ranks_.contains(each.rank()); });
}

void LogRelay::Reported(const v1::Report& report) {
  for (const v1::RankOnNode& rank : report.job().ranks()) {
    ranks_.insert(rank.rank());
    started_ = started_ || rank.pid() != 0;
    const auto grow = [&](v1::StreamKind stream, uint64_t bytes) {
      uint64_t& size = sizes_[{rank.rank(), stream}];
      size = std::max(size, bytes);
    };
    grow(v1::STREAM_KIND_STDOUT, rank.stdout_bytes());
    grow(v1::STREAM_KIND_STDERR, rank.stderr_bytes());
  }
}

absl::Status LogRelay::Known(uint32_t rank, v1::StreamKind stream) const {
  if (ranks_.contains(rank) &&
      (stream == v1::STREAM_KIND_STDOUT || stream == v1::STREAM_KIND_STDERR)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("it reported output ", stream, " of rank ", rank,
                                                 ", which is not on this node"));
}

absl::Status LogRelay::Finished(const v1::Finished& finished) {
  finished_ = true;
  for (const v1::LogEnd& end : finished.logs()) {
    if (absl::Status known = Known(end.rank(), end.stream()); !known.ok()) return known;
    sizes_[{end.rank(), end.stream()}] = end.size();
  }
  return absl::OkStatus();
}

uint64_t LogRelay::size(uint32_t rank, v1::StreamKind stream) const {
  const auto it = sizes_.find({rank, stream});
  return it == sizes_.end() ? 0 : it->second;
}

// ---- the launcher's reader --------------------------------------------------------------------

void LogRelay::Attach(std::shared_ptr<Writer> writer, const v1::LogsRequest& request) {
  if (writer_ != nullptr) writer_->Finish(absl::AbortedError("these logs have another reader now"));
  source_.reset();
  writer_ = std::move(writer);
  ++reader_;
  writing_ = over_ = false;
  sent_.clear();
  most_data_ = request.most_data();
  for (const v1::LogPosition& position : request.from()) {
    sent_[{position.rank(), position.stream()}] = position.offset();
  }
  OpenForLauncher();
}

v1::LogPositions LogRelay::KeepTaken() {
  // The new reader repeats what this one has read but not sent on.
  if (std::exchange(reclaim_, false) && source_ != nullptr && !writing_ && !over_) {
    OpenForLauncher();
  }
  v1::LogPositions forgotten;
  for (const auto& [key, offset] : sent_) {
    v1::LogPosition& position = *forgotten.add_streams();
    position.set_rank(key.first);
    position.set_stream(key.second);
    position.set_offset(offset);
  }
  return forgotten;
}

// From where it is.
void LogRelay::OpenForLauncher() {
  v1::ReadLogs ask;
  ask.set_reclaim(reclaim_);
  ask.set_most_data(most_data_);
  for (const auto& [key, offset] : sent_) {
    v1::LogPosition& from = *ask.add_from();
    from.set_rank(key.first);
    from.set_stream(key.second);
    from.set_offset(offset);
  }
  reclaims_ = reclaim_;
  LogSource::Handlers handlers;
  handlers.on_piece = [this](const v1::LogPosition& at, const link::SharedBytes& data) {
    Forward(at, data);
  };
  handlers.on_over = [this](const absl::StatusOr<v1::LogsEnd>& how) { EndLauncher(how); };
  absl::StatusOr<std::shared_ptr<LogSource>> source = Open(ask, std::move(handlers));
  if (!source.ok() && source_ != nullptr) return;  // it may still have something
  if (!source.ok() && !absl::IsUnavailable(source.status())) {
    return writer_->Finish(source.status());
  }
  if (!source.ok()) return EndLauncher(source.status());
  source_ = *std::move(source);
  source_->Next();
}

// Rank and offset are the launcher's to judge, who knows what comes next.
void LogRelay::Forward(const v1::LogPosition& at, const link::SharedBytes& data) {
  if (Known(at.rank(), at.stream()).ok())
    sent_[{at.rank(), at.stream()}] = at.offset() + data.size();
  v1::LogChunk chunk;
  chunk.set_rank(at.rank());
  chunk.set_stream(at.stream());
  chunk.set_offset(at.offset());
  writing_ = true;
  writer_->WriteBytes(rpc::SerializeWith(chunk, v1::LogChunk::kDataFieldNumber, data),
                      [this, alive = alive_, reader = reader_](bool ok) {
                        if (*alive) Taken(reader, ok);
                      });
}

void LogRelay::Taken(uint64_t reader, bool ok) {
  if (reader != reader_ || source_ == nullptr) return;
  writing_ = false;
  if (ok && reclaims_ != reclaim_ && !over_) return OpenForLauncher();
  if (ok) return source_->Next();
  // Its launcher is gone, and has not acknowledged it.
  source_.reset();
}

void LogRelay::EndLauncher(const absl::StatusOr<v1::LogsEnd>& how) {
  over_ = true;
  std::string lost = how.ok() ? Escape(how->lost(), kMostOfWhy) : Lost();
  if (!lost.empty()) log::Error(lost);
  if (lost.empty()) {
    writer_->Finish(absl::OkStatus());
  } else if (finished_) {
    // The workers may have done well: what is lost must not look like all there was.
    writer_->Finish(absl::DataLossError(lost));
  } else {
    // The node has failed, and why is on its way to the launcher.
    v1::LogChunk chunk;
    chunk.set_lost(std::move(lost));
    writer_->Write(chunk, [writer = writer_](bool) { writer->Finish(absl::OkStatus()); });
  }
}

// By what the shepherd has said; empty: nothing is.
std::string LogRelay::Lost() const {
  std::string first;
  uint64_t bytes = 0;
  std::set<uint32_t> ranks;
  for (const auto& [key, size] : sizes_) {
    const auto it = sent_.find(key);
    const uint64_t sent = it == sent_.end() ? 0 : it->second;
    if (sent >= size) continue;
    if (first.empty()) first = After(key.first, sent);
    bytes += size - sent;
    ranks.insert(key.first);
  }
  if (!first.empty()) {
    if (ranks.size() > 1) absl::StrAppend(&first, " and of ", ranks.size() - 1, " other ranks");
    return absl::StrCat(first, " is lost: its shepherd, the process that kept it, was killed (",
                        finished_ ? "" : "at least ", bytes, " bytes)");
  }
  if (finished_ || !started_) return "";
  return "what the ranks wrote last may be lost: their shepherd, the process that kept it, was "
         "killed";
}

// ---- others -------------------------------------------------------------------------------------

absl::StatusOr<std::shared_ptr<LogSource>> LogRelay::Open(const v1::ReadLogs& request,
                                                          LogSource::Handlers handlers) {
  absl::StatusOr<os::UniqueFd> socket = handlers_.ask(request);
  if (!socket.ok()) return socket.status();
  LogSource::Handlers checked;
  checked.on_piece = std::move(handlers.on_piece);
  checked.on_over = [this, alive = alive_, on_over = std::move(handlers.on_over)](
                        absl::StatusOr<v1::LogsEnd> how) mutable {
    std::string broken = absl::IsDataLoss(how.status()) ? std::string(how.status().message()) : "";
    on_over(std::move(how));
    if (*alive && !broken.empty()) handlers_.on_broken(std::move(broken));
  };
  return std::make_shared<LogSource>(loop_, *std::move(socket), std::move(checked));
}

absl::StatusOr<std::shared_ptr<LogSource>> LogRelay::OpenForOthers(v1::ReadLogs request,
                                                                   LogSource::Handlers handlers) {
  if (!Known(request.one().rank(), request.one().stream()).ok()) {
    return absl::NotFoundError("there is no such output on this node");
  }
  std::erase_if(others_, [](const auto& each) { return each.expired(); });
  if (others_.size() >= kMostOthers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this job's output has ", kMostOthers,
                     " readers on this node beside its launcher, which is the limit; end one of "
                     "them, or try again"));
  }
  request.set_most_data(kMostForOthers);
  auto source = Open(request, std::move(handlers));
  if (source.ok()) others_.push_back(*source);
  return source;
}

absl::StatusOr<std::shared_ptr<LogSource>> LogRelay::Follow(const v1::ReadLogRequest& request,
                                                            LogSource::Handlers handlers) {
  v1::ReadLogs ask;
  ask.mutable_one()->set_rank(request.rank());
  ask.mutable_one()->set_stream(request.stream());
  ask.mutable_one()->set_offset(request.offset());
  return OpenForOthers(ask, std::move(handlers));
}

void LogRelay::Read(const v1::ReadLogRequest& request, OnRead done) {
  auto reading = std::make_shared<Reading>(loop_);
  reading->limit = std::max<size_t>(request.limit(), 1);  // 0 is no limit to the shepherd
  reading->piece.set_offset(request.offset());
  v1::ReadLogs ask;
  ask.mutable_one()->set_rank(request.rank());
  ask.mutable_one()->set_stream(request.stream());
  ask.mutable_one()->set_offset(request.offset());
  ask.set_limit(reading->limit);
  const auto end = [this, alive = alive_,
                    key = std::weak_ptr<Reading>(reading)](absl::StatusOr<v1::LogPiece> answer) {
    const std::shared_ptr<Reading> kept = key.lock();
    if (kept == nullptr) return;
    if (*alive) readings_.remove(kept);
    kept->Finish(std::move(answer));
  };
  Reading* const raw = reading.get();
  LogSource::Handlers handlers;
  handlers.on_piece = [this, raw, end](const v1::LogPosition& at, const link::SharedBytes& data) {
    if (!raw->Take(at, data)) {
      const auto alive = alive_;
      end(absl::UnavailableError("the shepherd sent more than it was asked for"));
      if (*alive) handlers_.on_broken("it sent more output than it was asked for");
      return;
    }
    raw->source->Next();
  };
  handlers.on_over = [raw, end,
                      sizes_only = request.limit() == 0](absl::StatusOr<v1::LogsEnd> how) {
    if (!how.ok()) return end(absl::Status(how.status()));
    if (!how->lost().empty()) return end(absl::DataLossError(Escape(how->lost(), kMostOfWhy)));
    v1::LogPiece& piece = raw->piece;
    piece.set_size(how->size());
    piece.set_ended(how->ended());
    if (sizes_only) piece.clear_data();
    if (piece.data().empty()) piece.set_offset(std::min(piece.offset(), how->size()));
    end(std::move(piece));
  };
  absl::StatusOr<std::shared_ptr<LogSource>> source = OpenForOthers(ask, std::move(handlers));
  if (!source.ok()) return done(source.status());
  reading->source = *std::move(source);
  reading->done = std::move(done);
  reading->timer.After(kReadTimeout, [end] {
    end(absl::DeadlineExceededError("the job's shepherd does not answer: it is stopped, or hangs"));
  });
  readings_.push_back(reading);
  reading->source->Next();
}

}  // namespace dtrain::session
