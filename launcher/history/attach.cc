// SPDX-License-Identifier: Apache-2.0
#include "launcher/history/attach.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"
#include "launcher/detached/launcher_log.h"
#include "launcher/history/output_flags.h"
#include "launcher/output/line_splitter.h"
#include "launcher/output/log_files.h"
#include "launcher/output/router.h"
#include "launcher/report/write_result.h"
#include "launcher/status/left_workers.h"
#include "launcher/status/log_printer.h"
#include "launcher/status/look_watch.h"
#include "launcher/status/print.h"
#include "launcher/status/tables.h"
#include "launcher/story/care.h"
#include "launcher/story/find.h"
#include "launcher/story/output.h"

namespace dtrain::history {
namespace {

using Json = nlohmann::ordered_json;

constexpr Duration kPoll = std::chrono::milliseconds(200);
constexpr size_t kPiece = 64 << 10;
// Of each stream, of what was written before: progress bars write no lines.
constexpr uint64_t kMostTail = 1 << 20;
// Of a line of its launcher's.
constexpr size_t kMostSaid = 2000;

// What is shown, and in which form.
class Shown {
 public:
  virtual ~Shown() = default;
  virtual void BeginAttempt(output::Layout layout) = 0;
  virtual void Add(const detached::LogStream& stream, const std::string& bytes) = 0;
  // All that was added goes out: nothing follows soon.
  virtual void EndAttempt() = 0;
  virtual void Say(const std::string& text) = 0;
  virtual void End(const std::string& id, int exit_code, const std::string& report) = 0;
  virtual bool Full() const = 0;
  virtual void WhenRoom(loop::Task task) = 0;
  virtual void Finish(loop::Task done) = 0;
};

using OnFailed = absl::AnyInvocable<void(absl::Status)>;

// As `dtrain launch` shows it.
class ShownAsLaunched : public Shown {
 public:
  ShownAsLaunched(loop::Loop& loop, output::Options options, OnFailed on_failed)
      : router_(loop, std::move(options), {std::move(on_failed), nullptr}) {}

  void BeginAttempt(output::Layout layout) override {
    layout_ = layout;
    router_.SetLayout(std::move(layout));
  }
  void Add(const detached::LogStream& stream, const std::string& bytes) override {
    // Files of ranks that the job does not have.
    if (stream.rank.value() >= layout_.ranks.size()) return;
    const uint32_t node = layout_.ranks[stream.rank.value()].node;
    router_.Deliver(node < layout_.hosts.size() ? layout_.hosts[node] : "?", stream.rank,
                    stream.is_stderr ? v1::STREAM_KIND_STDERR : v1::STREAM_KIND_STDOUT, bytes);
  }
  void EndAttempt() override { router_.FlushLines(); }
  void Say(const std::string& text) override { router_.Say(absl::StrCat("dtrain: ", text)); }
  void End(const std::string&, int, const std::string& report) override {
    if (!report.empty()) router_.Say(report);
  }
  bool Full() const override { return router_.Full(); }
  void WhenRoom(loop::Task task) override { router_.WhenRoom(std::move(task)); }
  void Finish(loop::Task done) override { router_.Finish(std::move(done)); }

 private:
  output::OutputRouter router_;
  output::Layout layout_;
};

// --json: an object on each line.
class ShownAsJson : public Shown {
 public:
  ShownAsJson(loop::Loop& loop, OnFailed on_failed)
      : out_(loop, 1, std::move(on_failed)), err_(loop, 2, [](absl::Status) {}) {}

  void BeginAttempt(output::Layout layout) override { attempt_ = layout.attempt; }
  void Add(const detached::LogStream& stream, const std::string& bytes) override {
    lines_[stream].Add(bytes,
                       [&](absl::string_view line, bool) { AddLine(stream, std::string(line)); });
  }
  void EndAttempt() override {
    for (auto& [stream, lines] : lines_) {
      lines.Flush(
          [&, &from = stream](absl::string_view line, bool) { AddLine(from, std::string(line)); });
    }
    lines_.clear();
  }
  void Say(const std::string& text) override { err_.Write(absl::StrCat("dtrain: ", text, "\n")); }
  void End(const std::string& id, int exit_code, const std::string& report) override {
    Write({{"id", id}, {"ended", true}, {"exit_code", exit_code}, {"report", report}});
  }
  bool Full() const override { return out_.queued_bytes() >= output::OutputRouter::kLimit; }
  void WhenRoom(loop::Task task) override {
    out_.WhenBelow(output::OutputRouter::kLimit / 2, std::move(task));
  }
  void Finish(loop::Task done) override {
    EndAttempt();
    err_.Finish([this, done = std::move(done)]() mutable { out_.Finish(std::move(done)); });
  }

 private:
  void AddLine(const detached::LogStream& stream, std::string line) {
    Write({{"attempt", attempt_},
           {"rank", stream.rank.value()},
           {"stream", stream.is_stderr ? "stderr" : "stdout"},
           {"line", std::move(line)}});
  }
  void Write(const Json& json) { out_.Write(status::JsonText(json) + "\n"); }

  uint32_t attempt_ = 0;
  std::map<detached::LogStream, output::LineSplitter> lines_;
  loop::BlockingWriter out_;
  loop::BlockingWriter err_;
};

class Attachment {
 public:
  Attachment(const detached::JobFolder& job, const Options& options, status::LookWatch& watch)
      : job_(job),
        options_(options),
        watch_(watch),
        care_(job),
        log_(watch_.Do([&] { return detached::LauncherLog(job); })),
        shown_(watch_.Do([this] { return MakeShown(); })),
        interrupt_(loop_, {SIGINT}, [this](int) { Leave(); }),
        timer_(loop_) {}

  int Run() {
    Step();
    loop_.Run();
    // A reader that left meanwhile (EPIPE) has what he wants.
    if (lost_.ok() || absl::IsFailedPrecondition(lost_)) return code_;
    std::fprintf(stderr, "dtrain: attach: %s\n", std::string(lost_.message()).c_str());
    return code_ == kExitOk ? kExitState : code_;
  }

 private:
  std::unique_ptr<Shown> MakeShown() {
    auto on_failed = [this](absl::Status why) {
      if (finishing_) {
        lost_ = std::move(why);
      } else {
        loop_.Post([this, why = std::move(why)] { OnOutputFailed(why); });
      }
    };
    if (options_.json) return std::make_unique<ShownAsJson>(loop_, on_failed);
    output::Options options = OutputOptionsOf(job_);
    options.of_another = status::IsOfAnother(job_.path());
    return std::make_unique<ShownAsLaunched>(loop_, std::move(options), on_failed);
  }

  void OnOutputFailed(const absl::Status& why) {
    if (finishing_) {
      lost_ = why;  // the end came meanwhile
      return;
    }
    shown_->Say(absl::StrCat("attach: ", why.message(), "; ", job_.id(), " goes on"));
    End(kExitSignalBase + SIGPIPE);
  }

  void Leave() {
    if (finishing_) {
      // A second Ctrl-C: a terminal that takes nothing holds us no longer.
      loop_.Stop();
      return;
    }
    shown_->EndAttempt();
    shown_->Say(
        absl::StrCat("left; ", job_.id(), " goes on; `dtrain stop ", job_.id(), "` ends it"));
    End(kExitOk);
  }

  void End(int code) {
    finishing_ = true;
    code_ = code;
    timer_.Cancel();
    shown_->Finish([this] { loop_.Stop(); });
  }

  void Fail(const absl::Status& status) {
    shown_->EndAttempt();
    shown_->Say(absl::StrCat("attach: ", status.message()));
    End(story::ExitCodeOf(status));
  }

  void Step() {
    if (finishing_) return;
    if (shown_->Full()) {
      return shown_->WhenRoom([this] { Step(); });
    }
    watch_.Do([this] { Look(); });
  }

  // At all that may have changed.
  void Look() {
    if (absl::Status there = story::CheckThere(job_); !there.ok()) return Fail(there);
    // In this order: its launcher writes the summary before it says how the job has ended, which we
    // do by ourselves, and after all output.
    const std::string said = log_.Next();
    const bool ended = job_.HasSummary();
    if (!ended) Relay(said);
    const auto more = ReadOutput();
    if (!more.ok()) return Fail(more.status());
    if (*more) return loop_.Post([this] { Step(); });
    if (ended) return TellEnd();
    const auto note = care_.Look(loop_.Now(), [this] { watch_.Beat(); });
    if (!note.ok() && !job_.HasSummary()) return Fail(note.status());
    if (note.ok() && !note->empty()) shown_->Say(*note);
    timer_.After(kPoll, [this] { Step(); });
  }

  // What its launcher says meanwhile, such as why it restarts.
  void Relay(absl::string_view said) {
    for (absl::string_view line : absl::StrSplit(said, '\n', absl::SkipEmpty())) {
      shown_->Say(Escape(absl::StripPrefix(line, "dtrain: "), kMostSaid));
    }
  }

  // Whether there may be more at once.
  absl::StatusOr<bool> ReadOutput() {
    if (reader_ == nullptr && !BeginNext()) return false;
    // Before it is read: an attempt that has a successor writes nothing more.
    const bool is_over = HasNext();
    const auto any =
        reader_->Read(kPiece, [this](const detached::LogStream& stream, const std::string& bytes) {
          shown_->Add(stream, bytes);
          return !shown_->Full();
        });
    if (!any.ok() || *any || !is_over) return any;
    return BeginNext();
  }

  bool HasNext() const {
    const std::vector<uint32_t> attempts = story::AttemptsOf(job_);
    return !attempts.empty() && (!attempt_ || attempts.back() > *attempt_);
  }

  // The first time the last attempt that there is; then the one behind it.
  bool BeginNext() {
    const std::vector<uint32_t> attempts = story::AttemptsOf(job_);
    if (attempts.empty()) return false;
    const bool first = !attempt_;
    const auto at = first ? std::prev(attempts.end())
                          : std::upper_bound(attempts.begin(), attempts.end(), *attempt_);
    if (at == attempts.end() || !story::HasLayout(job_, *at)) return false;
    if (!first) shown_->EndAttempt();
    attempt_ = *at;
    if (*attempt_ > 0) shown_->Say(absl::StrCat("attempt ", *attempt_));
    shown_->BeginAttempt(story::LayoutOf(job_, *attempt_));
    reader_ = std::make_unique<story::OutputReader>(job_.LogFolder(*attempt_));
    if (first) reader_->SkipToLast(options_.tail, kMostTail).IgnoreError();
    return true;
  }

  void TellEnd() {
    shown_->EndAttempt();
    const auto entry = job_.Entry();
    const auto summary = job_.ReadSummary();
    if (!entry.ok()) return Fail(entry.status());
    if (entry->exit_code() < 0 || !summary.ok()) {
      return Fail(absl::DataLossError(absl::StrCat(
          job_.id(), " has ended, but its summary.json is damaged: its exit code is not known")));
    }
    shown_->End(job_.id(), entry->exit_code(), report::ReportOf(*summary));
    const Json json = Json::parse(*summary, nullptr, /*allow_exceptions=*/false);
    for (const Json& warning : status::At(json, "warnings")) {
      if (!warning.is_string()) continue;
      const auto& text = warning.get_ref<const std::string&>();
      if (absl::StartsWith(text, output::kLackBegins)) shown_->Say(Escape(text, kMostSaid));
    }
    const std::string left = status::LeftWorkersOf(job_);
    if (!left.empty()) shown_->Say(left);
    End(entry->exit_code());
  }

  loop::Loop loop_;
  const detached::JobFolder job_;
  const Options& options_;
  status::LookWatch& watch_;
  story::Care care_;
  detached::LauncherLog log_;
  std::unique_ptr<Shown> shown_;
  loop::SignalWatch interrupt_;
  loop::Timer timer_;
  std::unique_ptr<story::OutputReader> reader_;
  std::optional<uint32_t> attempt_;
  bool finishing_ = false;
  absl::Status lost_;  // of output that was still being written at the end
  int code_ = kExitOk;
};

}  // namespace

int Attach(const detached::JobFolder& job, const Options& options, status::LookWatch& watch) {
  Attachment attachment(job, options, watch);
  return attachment.Run();
}

}  // namespace dtrain::history
