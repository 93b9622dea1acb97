// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/router.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "launcher/output/log_files.h"
#include "launcher/output/tagger.h"

namespace dtrain::output {
namespace {

// Until a terminal that takes nothing is drawn on again.
constexpr Duration kRedraw = std::chrono::milliseconds(100);

// Two descriptors of one terminal, pipe, socket or file share a writer: their lines must not mix,
// nor overwrite each other in a file that was opened twice. /dev/null has no lines.
bool IsSame(int a, int b) {
  struct stat sa;
  struct stat sb;
  if (fstat(a, &sa) != 0 || fstat(b, &sb) != 0) return false;
  if (isatty(a) == 1 && isatty(b) == 1) return sa.st_rdev == sb.st_rdev;
  const bool has_lines = S_ISFIFO(sa.st_mode) || S_ISSOCK(sa.st_mode) || S_ISREG(sa.st_mode);
  return has_lines && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

}  // namespace

Display::Kind KindOf(int fd) {
  if (isatty(fd) == 1) {
    const char* name = getenv("TERM");
    return name != nullptr && absl::string_view(name) == "dumb" ? Display::Kind::kPlainTerminal
                                                                : Display::Kind::kTerminal;
  }
  struct stat status;
  return fstat(fd, &status) == 0 && S_ISREG(status.st_mode) ? Display::Kind::kFile
                                                            : Display::Kind::kPipe;
}

Display::Size SizeOf(int fd) {
  Display::Size size;
  winsize told{};
  if (ioctl(fd, TIOCGWINSZ, &told) != 0) return size;
  if (told.ws_col > 0) size.columns = told.ws_col;
  if (told.ws_row > 0) size.rows = told.ws_row;
  return size;
}

OutputRouter::Sink::Sink(loop::Loop& loop, int descriptor,
                         absl::AnyInvocable<void(absl::Status)> on_error)
    : fd(descriptor),
      display(KindOf(fd)),
      draws(KindOf(fd) == Display::Kind::kTerminal),
      writer(loop, fd, std::move(on_error)),
      timer(loop) {}

OutputRouter::OutputRouter(loop::Loop& loop, Options options, Callbacks callbacks, int out_fd,
                           int err_fd)
    : loop_(loop), options_(std::move(options)), callbacks_(std::move(callbacks)) {
  const auto on_error = [this](int fd, bool is_stdout) {
    return [this, alive = alive_, is_terminal = isatty(fd) == 1, is_stdout](absl::Status why) {
      if (*alive) OnError(std::move(why), is_terminal, is_stdout);
    };
  };
  const bool is_one = IsSame(out_fd, err_fd);
  if (!is_one) out_ = std::make_unique<Sink>(loop, out_fd, on_error(out_fd, /*is_stdout=*/true));
  err_ = std::make_unique<Sink>(loop, err_fd, on_error(err_fd, /*is_stdout=*/is_one));
  // A disk may have room again later.
  err_->writer.GoOnAfterFailures();
}

OutputRouter::~OutputRouter() { *alive_ = false; }

// A reader that left (EPIPE, ECONNRESET, a terminal's EIO) does not want what follows. A stderr
// that fails alone ends no job.
void OutputRouter::OnError(absl::Status why, bool is_terminal, bool is_stdout) {
  const bool has_left = is_terminal || absl::IsFailedPrecondition(why) || absl::IsUnavailable(why);
  if (!has_left && lost_.ok()) lost_ = why;
  if (is_stdout && callbacks_.on_failed) {
    std::exchange(callbacks_.on_failed, nullptr)(std::move(why));
  }
  CheckRoom();
}

absl::Status OutputRouter::Open(std::string holder, v1::OutputLost lost) {
  if (options_.log_dir.empty() && !options_.files) return absl::OkStatus();
  LogNames names = Names();
  names.goes_on = options_.goes_on;
  names.holder = std::move(holder);
  names.lost = std::move(lost);
  if (names.holder.empty()) names.lock.clear();
  LogFiles::Callbacks callbacks;
  callbacks.on_error = [this, flag = names.flag](const absl::Status& why) {
    if (callbacks_.on_warning) {
      callbacks_.on_warning(
          absl::StrCat(why.message(), "; the log files (", flag, ") will not be complete"));
    }
  };
  callbacks.on_progress = [this] { CheckRoom(); };
  callbacks.on_lost = [this](v1::OutputLost more) {
    if (callbacks_.on_lost) callbacks_.on_lost(std::move(more));
  };
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
  const Display::Sharing sharing = {world_size_, options_.fold,
                                    PassesThrough(options_, world_size_), options_.of_another};
  for (Sink* sink : {out_.get(), err_.get()}) {
    if (sink != nullptr) sink->display.SetSharing(sharing);
  }
}

bool OutputRouter::Shows(Rank rank, v1::StreamKind kind) const {
  DTRAIN_CHECK(rank.value() < layout_.ranks.size());
  return IsShown(options_.shown, rank, layout_.ranks[rank.value()].local_rank, kind);
}

Display::Moment OutputRouter::Now() const {
  return {Clock::now(), options_.timestamps ? TimePrefix(absl::Now(), absl::LocalTimeZone()) : ""};
}

void OutputRouter::Deliver(absl::string_view host, Rank rank, v1::StreamKind kind,
                           std::string bytes) {
  if (bytes.empty()) return;
  if (files_ != nullptr) files_->Write(rank, kind, bytes);
  if (!Shows(rank, kind)) return;
  Sink& sink = Of(kind);
  const auto prefix = [&] { return LinePrefix(EffectiveTag(options_, world_size_), host, rank); };
  sink.display.Add({rank.value(), kind}, prefix, bytes, Now());
  Pump(sink);
}

void OutputRouter::EndOfStream(Rank rank, v1::StreamKind kind) {
  if (files_ != nullptr) files_->End(rank, kind);
  Of(kind).display.End({rank.value(), kind}, Now());
  Pump(Of(kind));
}

void OutputRouter::Cut(Rank rank) {
  for (const v1::StreamKind kind : {v1::STREAM_KIND_STDOUT, v1::STREAM_KIND_STDERR}) {
    Of(kind).display.Cut({rank.value(), kind});
  }
}

// Writes what is to be written now, and sees to it that the rest is.
void OutputRouter::Pump(Sink& sink) {
  // A terminal that takes nothing shall not find a thousand old drawings when it goes on.
  const bool is_stuck = sink.draws && sink.writer.queued_bytes() > 0;
  const Display::Moment moment = Now();
  std::string bytes = sink.display.Take(
      moment, [&] { return SizeOf(sink.fd); }, !is_stuck);
  if (!bytes.empty()) sink.writer.Write(std::move(bytes));
  TimePoint due = sink.display.deadline();
  if (is_stuck && due != kNever) due = std::max(due, moment.now + kRedraw);
  if (due == sink.due) return;
  sink.due = due;
  sink.timer.At(due, [this, &sink] {
    sink.due = kNever;
    Pump(sink);
  });
}

bool OutputRouter::Full() const {
  size_t queued = err_->writer.queued_bytes() + err_->display.held();
  if (out_ != nullptr) queued += out_->writer.queued_bytes() + out_->display.held();
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
  loop::BlockingWriter* busiest = &err_->writer;
  if (out_ != nullptr && out_->writer.queued_bytes() > busiest->queued_bytes()) {
    busiest = &out_->writer;
  }
  if (busiest->queued_bytes() < kLimit / 2) return;
  waiting_ = true;
  busiest->WhenBelow(kLimit / 2, [this, alive = alive_] {
    if (!*alive) return;
    waiting_ = false;
    CheckRoom();
  });
}

void OutputRouter::Say(absl::string_view text) {
  err_->display.Say(text);
  Pump(*err_);
}

void OutputRouter::ShowStatus(absl::string_view line) {
  // A terminal that takes nothing shall not find a thousand old lines when it goes on.
  if (!line.empty() && err_->writer.queued_bytes() > 0) return;
  err_->display.SetStatus(line);
  Pump(*err_);
}

void OutputRouter::UserEndedLine() {
  for (Sink* sink : {out_.get(), err_.get()}) {
    if (sink == nullptr) continue;
    sink->display.UserEndedLine();
    Pump(*sink);
  }
}

void OutputRouter::FlushLines() {
  for (Sink* sink : {out_.get(), err_.get()}) {
    if (sink == nullptr) continue;
    sink->display.EndAll(Now());
    Pump(*sink);
  }
}

std::string OutputRouter::MissingInFiles() const { return files_ == nullptr ? "" : files_->Lack(); }

v1::OutputLost OutputRouter::LostInFiles() const {
  return files_ == nullptr ? v1::OutputLost() : files_->Lost();
}

void OutputRouter::FinishFiles(loop::Task done) {
  if (files_ == nullptr || std::exchange(files_are_over_, true)) return done();
  files_->Finish(std::move(done));
}

void OutputRouter::Finish(loop::Task done) {
  ShowStatus("");
  FlushLines();
  auto written = [this, alive = alive_, done = std::move(done)]() mutable {
    if (!*alive) return;
    err_->writer.Finish([this, alive, done = std::move(done)]() mutable {
      if (!*alive) return;
      if (out_ == nullptr) {
        done();
      } else {
        out_->writer.Finish(std::move(done));
      }
    });
  };
  // The files first, because their errors are reported on stderr.
  FinishFiles(std::move(written));
}

void OutputRouter::FinishSaying(Duration at_most) {
  FlushLines();  // what stands would hold it back
  err_->writer.WaitUntilWritten(at_most);
}

}  // namespace dtrain::output
