// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/router.h"

#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "launcher/output/log_files.h"
#include "launcher/output/tagger.h"
#include "launcher/output/terminal_text.h"

namespace dtrain::output {
namespace {

constexpr absl::string_view kEraseLine = "\r\033[K";

bool SameDevice(int a, int b) {
  struct stat sa;
  struct stat sb;
  return fstat(a, &sa) == 0 && fstat(b, &sb) == 0 && sa.st_rdev == sb.st_rdev;
}

}  // namespace

OutputRouter::OutputRouter(loop::Loop& loop, Options options, Callbacks callbacks, int out_fd,
                           int err_fd)
    : loop_(loop),
      options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      fold_timer_(loop) {
  err_is_terminal_ = isatty(err_fd) == 1;
  out_is_terminal_ = isatty(out_fd) == 1;
  same_terminal_ = err_is_terminal_ && out_is_terminal_ && SameDevice(out_fd, err_fd);
  auto failed = [this](absl::Status why) {
    if (callbacks_.on_failed) std::exchange(callbacks_.on_failed, nullptr)(std::move(why));
    CheckRoom();
  };
  if (same_terminal_) {
    err_ = std::make_unique<loop::BlockingWriter>(loop, err_fd,
                                                  [alive = alive_, failed](absl::Status why) {
                                                    if (*alive) failed(std::move(why));
                                                  });
    return;
  }
  out_ = std::make_unique<loop::BlockingWriter>(loop, out_fd,
                                                [alive = alive_, failed](absl::Status why) {
                                                  if (*alive) failed(std::move(why));
                                                });
  // Who closed our stderr does not want to read it; that alone ends no job.
  err_ = std::make_unique<loop::BlockingWriter>(loop, err_fd, [this, alive = alive_](absl::Status) {
    if (*alive) CheckRoom();
  });
  // A detached job's log, on a disk that was full: what is said later is worth as much.
  err_->GoOnAfterFailures();
}

OutputRouter::~OutputRouter() { *alive_ = false; }

absl::Status OutputRouter::Open(std::string holder) {
  if (options_.log_dir.empty() && !options_.files) return absl::OkStatus();
  LogNames names = Names();
  names.goes_on = options_.goes_on;
  names.holder = std::move(holder);
  if (names.holder.empty()) names.lock.clear();
  LogFiles::Callbacks callbacks;
  callbacks.on_error = [this, flag = names.flag](const absl::Status& why) {
    if (callbacks_.on_warning) {
      callbacks_.on_warning(
          absl::StrCat(why.message(), "; the log files (", flag, ") will not be complete"));
    }
  };
  callbacks.on_progress = [this] { CheckRoom(); };
  files_ = std::make_unique<LogFiles>(loop_, std::move(names), std::move(callbacks));
  return files_->Open();
}

LogNames OutputRouter::Names() const {
  if (!options_.files) return NamesInDirectory(options_.log_dir);
  return {"--output",
          options_.files->folder(),
          options_.files->HasStream(),
          [this](Rank rank, v1::StreamKind stream) {
            return options_.files->Name(layout_, rank, stream);
          },
          /*goes_on=*/false,
          options_.files->LockName()};
}

void OutputRouter::SetLayout(Layout layout) {
  layout_ = std::move(layout);
  world_size_ = static_cast<uint32_t>(layout_.ranks.size());
  const std::string warning = WarningOfRanks(options_.shown, world_size_);
  if (!warning.empty() && callbacks_.on_warning) callbacks_.on_warning(warning);
}

bool OutputRouter::Shows(Rank rank, v1::StreamKind kind) const {
  DTRAIN_CHECK(rank.value() < layout_.ranks.size());
  return IsShown(options_.shown, rank, layout_.ranks[rank.value()].local_rank, kind);
}

OutputRouter::Stream& OutputRouter::Find(absl::string_view host, Rank rank, v1::StreamKind kind) {
  auto [it, is_new] = streams_.try_emplace(StreamId{rank.value(), kind});
  if (is_new) it->second.prefix = LinePrefix(EffectiveTag(options_, world_size_), host, rank);
  return it->second;
}

// A lone rank may do with the terminal what it would do without us.
bool OutputRouter::SharesTerminal(v1::StreamKind kind) const {
  return world_size_ > 1 && (kind == v1::STREAM_KIND_STDERR ? err_is_terminal_ : out_is_terminal_);
}

void OutputRouter::AppendLine(const Stream& stream, v1::StreamKind kind, absl::string_view time,
                              absl::string_view line, std::string& out) const {
  if (SharesTerminal(kind)) {
    AppendForTerminal(line, absl::StrCat(time, stream.prefix), out);
  } else {
    out.append(time.data(), time.size());
    out.append(stream.prefix);
    out.append(line.data(), line.size());
  }
  out.push_back('\n');
}

std::string OutputRouter::TimeNow() const {
  return options_.timestamps ? TimePrefix(absl::Now(), absl::LocalTimeZone()) : "";
}

void OutputRouter::Deliver(absl::string_view host, Rank rank, v1::StreamKind kind,
                           std::string bytes) {
  if (bytes.empty()) return;
  if (files_ != nullptr) files_->Write(rank, kind, bytes);
  if (!Shows(rank, kind)) return;
  if (PassesThrough(options_, world_size_)) return Emit(kind, std::move(bytes));
  Stream& stream = Find(host, rank, kind);
  const std::string time = TimeNow();
  std::string out;
  // Guessing lines of 50 bytes avoids most growing.
  out.reserve(stream.splitter.pending() + bytes.size() +
              (bytes.size() / 50 + 2) * (time.size() + stream.prefix.size() + 1));
  stream.splitter.Add(
      bytes, [&](absl::string_view line, bool) { TakeLine(stream, rank, kind, time, line, out); });
  Emit(kind, std::move(out));
  PlanFold(kind);
}

void OutputRouter::TakeLine(const Stream& stream, Rank rank, v1::StreamKind kind,
                            absl::string_view time, absl::string_view line, std::string& out) {
  if (!Folds(kind) || !fold_.Wants(rank, line)) return AppendLine(stream, kind, time, line, out);
  for (const TracebackFold::Line& shown : fold_.Add(rank, line, Clock::now())) {
    AppendLine(stream, kind, time, shown.text, out);
  }
}

bool OutputRouter::Folds(v1::StreamKind kind) const {
  return options_.fold && kind == v1::STREAM_KIND_STDERR && world_size_ > 1;
}

void OutputRouter::ShowFolded(const TracebackFold::Lines& lines) {
  const std::string time = TimeNow();
  std::string out;
  for (const TracebackFold::Line& line : lines) {
    auto stream = streams_.find(StreamId{line.rank.value(), v1::STREAM_KIND_STDERR});
    DTRAIN_CHECK(stream != streams_.end());
    AppendLine(stream->second, v1::STREAM_KIND_STDERR, time, line.text, out);
  }
  Emit(v1::STREAM_KIND_STDERR, std::move(out));
}

void OutputRouter::TellFolded() {
  for (const std::string& text : fold_.TakeSummaries()) {
    Emit(v1::STREAM_KIND_STDERR, absl::StrCat("dtrain: ", text, " (--no-fold shows them all)\n"));
  }
}

void OutputRouter::PlanFold(v1::StreamKind kind) {
  if (!Folds(kind)) return;
  fold_timer_.At(fold_.deadline(), [this] {
    ShowFolded(fold_.Expire(Clock::now()));
    if (fold_.deadline() <= Clock::now()) TellFolded();
    PlanFold(v1::STREAM_KIND_STDERR);
  });
}

void OutputRouter::FlushStream(const StreamId& id, Stream& stream) {
  const auto kind = static_cast<v1::StreamKind>(id.second);
  std::string out;
  stream.splitter.Flush([&](absl::string_view line, bool) {
    TakeLine(stream, Rank(id.first), kind, TimeNow(), line, out);
  });
  Emit(kind, std::move(out));
  if (Folds(kind)) ShowFolded(fold_.End(Rank(id.first), Clock::now()));
}

void OutputRouter::EndOfStream(Rank rank, v1::StreamKind kind) {
  if (files_ != nullptr) files_->End(rank, kind);
  auto it = streams_.find(StreamId{rank.value(), kind});
  if (it == streams_.end()) return;
  FlushStream(it->first, it->second);
  PlanFold(kind);
  streams_.erase(it);
}

void OutputRouter::Emit(v1::StreamKind kind, std::string bytes) {
  if (bytes.empty()) return;
  bool to_err = kind == v1::STREAM_KIND_STDERR || out_ == nullptr;
  if (!status_.empty() && to_err) {
    bytes.insert(0, kEraseLine.data(), kEraseLine.size());
    status_.clear();
  }
  (to_err ? err_ : out_)->Write(std::move(bytes));
}

bool OutputRouter::Full() const {
  size_t queued = err_->queued_bytes();
  if (out_ != nullptr) queued += out_->queued_bytes();
  if (files_ != nullptr) queued += files_->queued_bytes();
  return queued >= kLimit;
}

void OutputRouter::WhenRoom(loop::Task task) {
  room_.push_back(std::move(task));
  CheckRoom();
}

// Calls the waiting tasks when there is room, else sees to it that it is called again.
void OutputRouter::CheckRoom() {
  if (room_.empty()) return;
  if (!Full()) {
    std::vector<loop::Task> tasks = std::exchange(room_, {});
    for (loop::Task& task : tasks) loop_.Post(std::move(task));
    return;
  }
  if (waiting_) return;
  // The writer with the most to do decides; half the limit, so that feeders do not start and stop
  // at every write. When log files are what is full, their progress calls us.
  loop::BlockingWriter* busiest = err_.get();
  if (out_ != nullptr && out_->queued_bytes() > err_->queued_bytes()) busiest = out_.get();
  if (busiest->queued_bytes() < kLimit / 2) return;
  waiting_ = true;
  busiest->WhenBelow(kLimit / 2, [this, alive = alive_] {
    if (!*alive) return;
    waiting_ = false;
    CheckRoom();
  });
}

void OutputRouter::Say(absl::string_view text) {
  TellFolded();
  Emit(v1::STREAM_KIND_STDERR, absl::StrCat(absl::StripSuffix(text, "\n"), "\n"));
}

void OutputRouter::ShowStatus(absl::string_view line) {
  if (!err_is_terminal_ || line == status_) return;
  // A terminal that takes nothing shall not find a thousand old lines when it goes on.
  if (!line.empty() && err_->queued_bytes() > 0) return;
  err_->Write(absl::StrCat(kEraseLine, line));
  status_.assign(line.data(), line.size());
}

void OutputRouter::FlushLines() {
  for (auto& [id, stream] : streams_) FlushStream(id, stream);
  TellFolded();
  fold_timer_.Cancel();
  streams_.clear();
}

void OutputRouter::Finish(loop::Task done) {
  ShowStatus("");
  FlushLines();
  auto written = [this, alive = alive_, done = std::move(done)]() mutable {
    if (!*alive) return;
    err_->Finish([this, alive, done = std::move(done)]() mutable {
      if (!*alive) return;
      if (out_ == nullptr) {
        done();
      } else {
        out_->Finish(std::move(done));
      }
    });
  };
  // The files first, because their errors are reported on stderr.
  if (files_ == nullptr) {
    written();
  } else {
    files_->Finish(std::move(written));
  }
}

void OutputRouter::FinishSaying(Duration at_most) { err_->WaitUntilWritten(at_most); }

}  // namespace dtrain::output
