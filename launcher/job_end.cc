// SPDX-License-Identifier: Apache-2.0
#include "launcher/job_end.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/ended_record.h"
#include "launcher/report/collective_table.h"
#include "launcher/report/failure_report.h"
#include "launcher/report/result_json.h"
#include "launcher/report/write_result.h"

namespace dtrain {
namespace {

// A launch that has ended is not held up by a file server that does not answer.
constexpr Duration kRecordPatience = std::chrono::seconds(2);
// For a disk to take the last of the log files.
constexpr Duration kLogFilesPatience = std::chrono::minutes(1);

}  // namespace

JobEnd::JobEnd(const Around& around, absl::AnyInvocable<report::JobFacts()> facts, loop::Task done)
    : around_(around),
      facts_(std::move(facts)),
      done_(std::move(done)),
      exit_code_(facts_().verdict.exit_code),
      patience_(around.loop),
      summary_timer_(around.loop),
      keeping_(around.loop) {}

void JobEnd::Begin(std::vector<std::string> details, bool stopped) {
  details_ = std::move(details);
  stopped_ = facts_().verdict.kind == job::Verdict::Kind::kSignal || stopped;
  if (around_.records == nullptr) {
    SayReport();
    SayLostOutput();
  }
  // What they lack is a part of how the job ends.
  patience_.After(stopped_ ? kOutputWait : kLogFilesPatience, [this] { OnFilesOver(); });
  around_.router.FinishFiles([this] { OnFilesOver(); });
}

bool JobEnd::StopWaiting() {
  if (files_over_) return false;
  OnFilesOver();
  return true;
}

void JobEnd::OnFilesOver() {
  if (std::exchange(files_over_, true)) return;
  patience_.Cancel();
  missing_ = around_.router.MissingInFiles();
  if (!missing_.empty()) {
    around_.router.Say(absl::StrCat("dtrain: ", missing_));
    if (exit_code_ == kExitOk) exit_code_ = kExitState;
  }
  if (around_.records == nullptr) return BeginAttached();
  WriteFiles();
  BeginDetached();
}

void JobEnd::BeginAttached() {
  WriteFiles();
  KeepRecord();
  // Who has stopped the launch does not wait for a terminal that takes nothing.
  if (stopped_) {
    patience_.After(kOutputWait, [this] { RunOwnHook([this] { done_(); }); });
  }
  around_.router.Finish([this] {
    SayLostOutput();
    WhenKept([this] {
      TellRecord();
      RunOwnHook([this] { FinishStatus(); });
    });
  });
}

void JobEnd::KeepRecord() {
  if (around_.options.job.dry_run) {
    kept_ = true;
    return;
  }
  const report::JobFacts facts = facts_();
  EndedRecord::Job job{around_.options,
                       around_.begin_unix_nanos,
                       0,
                       std::nullopt,
                       ResultJson(),
                       around_.status == nullptr ? nullptr : &around_.status->logs()};
  if (facts.campaign != nullptr && !facts.campaign->ended().empty()) {
    job.attempt = facts.campaign->ended().back().attempt;
  }
  if (facts.verdict.kind == job::Verdict::Kind::kWorker) job.failed = facts.verdict.rank;
  keeping_.Make(
      "keep what stays of the job", [record = EndedRecord(job)] { return record.Write(); },
      kRecordPatience, absl::UnavailableError("the state folder does not answer"),
      [this](const absl::Status& written) {
        kept_ = true;
        kept_status_ = written;
        for (loop::Task& task : std::exchange(when_kept_, {})) task();
      });
}

// Only with -v: most users do not miss the record.
void JobEnd::TellRecord() const {
  if (kept_status_.ok() || !around_.options.verbose) return;
  std::fprintf(stderr, "dtrain: the job is not in dtrain history: %s\n",
               std::string(kept_status_.message()).c_str());
}

void JobEnd::WhenKept(loop::Task then) {
  if (kept_) return then();
  when_kept_.push_back(std::move(then));
}

// After all that was said. It finds the summary for as long as it runs.
void JobEnd::RunOwnHook(loop::Task then) {
  patience_.Cancel();
  if (std::exchange(own_hook_begun_, true)) return;
  const std::string& command = around_.options.detach.on_end;
  if (command.empty() || around_.options.job.dry_run) return then();
  const auto over =
      [this, then = std::make_shared<loop::Task>(std::move(then))](std::optional<int> code) {
        if (code.value_or(0) != 0) {
          std::fprintf(stderr, "dtrain: warning: --on-end ended with %d\n", *code);
        }
        summary_folder_.reset();
        (*then)();
      };
  if (const absl::Status started = StartOwnHook(command, over); !started.ok()) {
    std::fprintf(stderr, "dtrain: warning: --on-end: %s\n", std::string(started.message()).c_str());
    over(0);
  }
}

absl::StatusOr<std::string> JobEnd::WriteOwnSummary() {
  auto folder = os::ScratchFolder::Make(os::TemporaryDirectories());
  if (!folder.ok()) return folder.status();
  summary_folder_.emplace(*std::move(folder));
  std::string summary = summary_folder_->path() + "/summary.json";
  absl::Status written = report::WriteWhole("--on-end", summary, ResultJson());
  if (!written.ok()) return written;
  return summary;
}

// The hook runs even without a summary, as on a full disk: it may notify people of the end.
absl::Status JobEnd::StartOwnHook(const std::string& command, EndHook::Done over) {
  const absl::StatusOr<std::string> written = WriteOwnSummary();
  if (!written.ok()) {
    std::fprintf(stderr, "dtrain: warning: --on-end runs with an empty DTRAIN_SUMMARY: %s\n",
                 std::string(written.status().message()).c_str());
  }
  const std::string summary = written.ok() ? *written : "";
  auto hook = EndHook::Start(
      around_.loop, command, EndHook::OurOwn(), {around_.options.job.job_id, exit_code_, summary},
      {around_.options.detach.on_end_timeout,
       [](const std::string& text) { std::fprintf(stderr, "dtrain: %s\n", text.c_str()); }},
      std::move(over));
  if (!hook.ok()) return hook.status();
  hook_ = *std::move(hook);
  return absl::OkStatus();
}

void JobEnd::SayReport() {
  const report::JobFacts facts = facts_();
  if (std::string text = report::FailureReport(facts); !text.empty()) around_.router.Say(text);
  if (exit_code_ == kExitCleanup || exit_code_ == kExitAgentLost) {
    for (const std::string& detail : details_) Warn(detail);
  }
  if (!around_.options.verbose) return;
  around_.router.Say(report::PhaseTable(facts, around_.slowest, around_.loop.Now()));
  if (std::string table = report::CollectiveTable(facts); !table.empty()) around_.router.Say(table);
}

void JobEnd::WriteFiles() {
  if (around_.timeline != nullptr) {
    absl::Status written = around_.timeline->Finish(facts_(), around_.loop.Now());
    if (absl::IsDataLoss(written)) {
      Warn(absl::StrCat("dtrain: ", written.message()));
    } else if (!written.ok()) {
      SayUnwritten(written);
    }
  }
  if (around_.options.result_json.empty()) return;
  absl::Status written = report::WriteResult(around_.options.result_json, ResultJson());
  if (!written.ok()) SayUnwritten(written);
}

void JobEnd::SayUnwritten(const absl::Status& why) {
  around_.router.Say(absl::StrCat("dtrain: ", why.message()));
  if (exit_code_ == kExitOk) exit_code_ = kExitState;
}

std::string JobEnd::LostOutput() const {
  const absl::Status& lost = around_.router.lost();
  if (lost.ok() || around_.records != nullptr) return "";
  return absl::StrCat("output was lost: ", lost.message());
}

// If stderr still takes nothing, the exit code and the result file say so.
void JobEnd::SayLostOutput() {
  if (exit_code_ != kExitOk) return;
  const std::string lost = LostOutput();
  if (lost.empty()) return;
  std::fprintf(stderr, "dtrain: %s\n", lost.c_str());
  exit_code_ = kExitState;
}

// With the summary the job is over for all who wait for it; then comes what they do not wait for.
// Who reads what we say tells the end himself, by the summary.
// Until it is on disk the journal, which goes at the end, is all that says how the job ended.
void JobEnd::BeginDetached() {
  JobRecords& records = *around_.records;
  const absl::Status written = records.WriteSummary(ResultJson());
  // In a folder that was removed nobody looks for it.
  if (!written.ok() && !absl::IsNotFound(written)) {
    if (!std::exchange(summary_failed_, true)) {
      around_.router.Say(absl::StrCat(
          "dtrain: warning: how ", records.folder().id(), " ended cannot be written: ",
          written.message(), "; it is tried again each second: ", records.WhatToDo(written)));
    }
    return summary_timer_.After(detached::kJournalRetry, [this] { BeginDetached(); });
  }
  SayReport();
  RunHook([this] { around_.records->Ended([this] { Settle(); }); });
}

void JobEnd::RunHook(loop::Task then) {
  JobRecords& records = *around_.records;
  if (around_.options.detach.on_end.empty() || records.hook_is_over()) return then();
  const auto over =
      [this, then = std::make_shared<loop::Task>(std::move(then))](std::optional<int> code) {
        if (code.value_or(0) != 0) {
          around_.router.Say(absl::StrCat("dtrain: warning: --on-end ended with ", *code));
        }
        around_.records->HookEnds(code.value_or(kExitCleanup), [then] { (*then)(); });
      };
  records.HookBegins([this, over] {
    const v1::Spec& spec = around_.records->spec();
    const EndHook::Ended ended{spec.job_id(), exit_code_,
                               around_.records->folder().path() + "/summary.json"};
    auto hook = EndHook::Start(
        around_.loop, around_.options.detach.on_end, EndHook::Of(spec), ended,
        {around_.options.detach.on_end_timeout,
         [this](const std::string& text) { around_.router.Say(absl::StrCat("dtrain: ", text)); }},
        over);
    if (hook.ok()) {
      hook_ = *std::move(hook);
    } else {
      around_.router.Say(absl::StrCat("dtrain: warning: --on-end: ", hook.status().message()));
      over(kExitNotFound);
    }
  });
}

void JobEnd::Settle() {
  const absl::Status settled = around_.records->Settle();
  if (!settled.ok()) around_.router.Say(absl::StrCat("dtrain: warning: ", settled.message()));
  const auto pruned = around_.records->PruneOthers();
  if (!pruned.ok()) {
    around_.router.Say(
        absl::StrCat("dtrain: warning: old jobs were not removed: ", pruned.status().message()));
  } else if (!pruned->empty()) {
    around_.router.Say(
        absl::StrCat("dtrain: removed ", Count(pruned->size(), "ended job"),
                     " that [history] does not keep: ", absl::StrJoin(*pruned, ", ")));
  }
  FinishOutput();
}

void JobEnd::FinishOutput() {
  around_.router.Finish([this] { FinishStatus(); });
}

void JobEnd::FinishStatus() {
  if (around_.status == nullptr) return done_();
  around_.status->Finish([this] { done_(); });
}

void JobEnd::Warn(absl::string_view text) {
  if (!around_.options.quiet) around_.router.Say(text);
}

std::string JobEnd::ResultJson() {
  const report::JobFacts facts = facts_();
  std::vector<std::string> warnings = facts.warnings;
  if (std::string lost = LostOutput(); !lost.empty()) warnings.push_back(std::move(lost));
  if (!missing_.empty()) warnings.push_back(missing_);
  job::Verdict verdict = facts.verdict;
  verdict.exit_code = exit_code_;  // what could not be written counts, too
  return report::ResultJson(
      {facts.state, facts.nodes, facts.ranks, facts.phases, verdict, facts.secondary_deaths,
       warnings, facts.campaign, facts.code, facts.gpus, facts.disk},
      around_.options.job.job_id, around_.loop.Now());
}

}  // namespace dtrain
