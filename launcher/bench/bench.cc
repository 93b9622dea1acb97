// SPDX-License-Identifier: Apache-2.0
#include "launcher/bench/bench.h"

#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/bench/carried_worker.h"
#include "launcher/bench/plots.h"
#include "launcher/bench/results.h"
#include "launcher/bench/scaling.h"
#include "launcher/bench/svg.h"
#include "launcher/bench/tables.h"
#include "launcher/report/write_result.h"
#include "launcher/self/launches.h"

namespace dtrain::bench {
namespace {

constexpr int kFailed = 1;

void Print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void Complain(absl::string_view text) {
  std::fprintf(stderr, "dtrain: bench: %s\n", std::string(text).c_str());
}

class Session {
 public:
  Session(const Options& options, const std::vector<std::string>& environment)
      : options_(options), environment_(environment), self_(self::OwnPath()) {
    worker_ = options.worker;
    if (worker_.empty()) {
      worker_ = (std::filesystem::path(self_).parent_path() / "dtrain-allreduce").string();
      if (GoesElsewhere(options)) Carry();
    }
  }

  int Run() {
    switch (options_.tool) {
      case Tool::kAllreduce:
        return Sizes();
      case Tool::kPairs:
        return Pairs();
      case Tool::kScaling:
        return Scaling();
    }
    return kExitUsage;
  }

 private:
  int Sizes();
  int Pairs();
  int Scaling();

  // So that the hosts need not have it. Those that do are none the worse.
  void Carry() {
    absl::StatusOr<CarriedWorker> made = CarriedWorker::Make(worker_);
    if (!made.ok()) {
      Complain(absl::StrCat("every host must have ", Escape(worker_),
                            ", as it cannot be sent: ", made.status().message()));
      return;
    }
    carried_ = *std::move(made);
    worker_ = CarriedWorker::command();
    stage_ = carried_->folder();
  }

  // One launch; false when it could not be started or failed: `code` is then what to exit with.
  bool Launch(const std::vector<std::string>& words, int& code, self::LaunchEnd& end,
              absl::AnyInvocable<void(absl::string_view)> on_line) {
    std::vector<std::string> argv = {self_};
    argv.insert(argv.end(), words.begin(), words.end());
    absl::StatusOr<self::LaunchEnd> ended = self::RunLaunch(argv, environment_, std::move(on_line));
    if (!ended.ok()) {
      Complain(absl::StrCat("could not start dtrain launch: ", ended.status().message()));
      code = kFailed;
      return false;
    }
    end = std::move(*ended);
    code = end.code;
    return code == kExitOk;
  }

  // The tool's own worker: its text is `text` afterwards.
  bool LaunchWorker(int& code, LaunchFacts& facts, std::string& text,
                    absl::AnyInvocable<void(absl::string_view)> on_line) {
    self::LaunchEnd end;
    const bool good =
        Launch(WorkerLaunch(options_, worker_, stage_), code, end, [&](absl::string_view line) {
          absl::StrAppend(&text, line, "\n");
          on_line(line);
        });
    facts = ReadLaunchFacts(end.result).value_or(LaunchFacts());
    if (!carried_ && (code == kExitNotFound || code == kExitNotExecutable)) {
      Complain(absl::StrCat("the worker is ", Escape(worker_),
                            ", which every host must have; --worker PATH names another place"));
    }
    return good;
  }

  bool RunOnce(RankCount count, int& code, ScalingRun& run);
  bool Predict(RankCount count, int& code, ScalingRun& run);
  int Finish(int code, absl::string_view title, const std::string& plot, const std::string& table);

  const Options& options_;
  const std::vector<std::string>& environment_;
  const std::string self_;
  std::string worker_;
  std::optional<CarriedWorker> carried_;
  std::string stage_;  // its folder; empty: the hosts have it
};

// Writes the plot, if one is wanted; `code` unless that fails.
int Session::Finish(int code, absl::string_view title, const std::string& plot,
                    const std::string& table) {
  if (options_.plot.empty()) return code;
  const absl::Status status =
      report::WriteWhole("--plot", options_.plot, Page(options_.plot, title, plot, table));
  if (status.ok()) return code;
  Complain(status.message());
  return code == kExitOk ? kExitState : code;
}

int Session::Sizes() {
  int code = 0;
  LaunchFacts facts;
  std::string text;
  // Rows appear as they come: a whole run takes minutes.
  bool begun = false;
  LaunchWorker(code, facts, text, [&](absl::string_view line) {
    const std::optional<SizeRow> row = ReadSizeLine(line);
    if (!row || options_.json) return;
    if (!begun) Print(SizeTableHead(*row, options_));
    begun = true;
    Print(SizeTableRow(*row, options_));
  });
  const std::vector<SizeRow> rows = ReadSizes(text);
  std::string table = rows.empty() ? "" : SizeTableHead(rows[0], options_);
  for (const SizeRow& row : rows) table += SizeTableRow(row, options_);
  table += SizeTableEnd(rows, facts);
  if (options_.json) {
    Print(SizesJson(rows));
  } else if (!begun && !rows.empty()) {
    Print(table);
  } else {
    Print(SizeTableEnd(rows, facts));
  }
  if (rows.empty()) {
    if (code != kExitOk) return code;
    Complain(absl::StrCat(Escape(worker_), " printed no results; is it dtrain-allreduce?"));
    return kFailed;
  }
  const std::string title =
      absl::StrCat(options_.collective, rows[0].pipelined ? ", pipelined, " : ", ",
                   Count(facts.ranks.size(), "rank"), " on ", Count(facts.nodes, "node"));
  return Finish(code, title, SizePlot(rows, title), table);
}

int Session::Pairs() {
  int code = 0;
  LaunchFacts facts;
  std::string text;
  LaunchWorker(code, facts, text, [](absl::string_view) {});
  const std::vector<PairRow> rows = ReadPairs(text);
  if (rows.empty()) {
    if (options_.json) Print(PairsJson(rows, facts));
    if (code != kExitOk) return code;
    Complain(facts.ranks.size() < 2
                 ? "no pair to measure: name at least two hosts, or -np -2 for two ranks here"
                 : absl::StrCat(Escape(worker_), " printed no results; is it dtrain-allreduce?"));
    return kFailed;
  }
  const std::string table = PairTable(rows, facts);
  Print(options_.json ? PairsJson(rows, facts) : table);
  const std::string title = absl::StrCat("bandwidth between ", Count(facts.ranks.size(), "rank"),
                                         " on ", Count(facts.nodes, "node"));
  return Finish(code, title, PairPlot(rows, facts, title), table);
}

bool Session::RunOnce(RankCount count, int& code, ScalingRun& run) {
  run.count = count;
  self::LaunchEnd end;
  const bool good = Launch(ScalingLaunch(options_, count), code, end, [&](absl::string_view line) {
    if (const std::optional<Step> step = ReadStep(line)) {
      run.steps.push_back(*step);
      return;
    }
    // Standard output is for our own result.
    std::fprintf(stderr, "%s\n", std::string(line).c_str());
  });
  run.facts = ReadLaunchFacts(end.result).value_or(LaunchFacts());
  return good;
}

// False when the whole command is to end with `code`.
bool Session::Predict(RankCount count, int& code, ScalingRun& run) {
  const double bytes = BytesPerStep(run);
  if (count.ranks < 2 || bytes < 1) return true;
  self::LaunchEnd end;
  std::string text;
  const bool good = Launch(PredictionLaunch(options_, count, worker_, bytes, stage_), code, end,
                           [&](absl::string_view line) { absl::StrAppend(&text, line, "\n"); });
  if (end.signalled) return false;
  const std::vector<SizeRow> rows = ReadSizes(text);
  if (good && !rows.empty() && rows[0].busbw_gbs > 0) {
    run.busbw_gbs = rows[0].busbw_gbs;
  } else {
    Complain(absl::StrCat("no prediction for ", Count(count.ranks, "rank"), ": ", Escape(worker_),
                          good ? " printed no result" : absl::StrCat(" ended with ", code)));
  }
  code = kExitOk;
  return true;
}

int Session::Scaling() {
  int code = kExitOk;
  std::vector<ScalingRun> runs;
  for (const RankCount count : options_.counts) {
    Complain(absl::StrCat(Count(count.ranks, "rank"), count.local ? " on this machine" : ""));
    ScalingRun run;
    if (!RunOnce(count, code, run) || !Predict(count, code, run)) break;
    runs.push_back(std::move(run));
  }
  const std::vector<ScalingRow> rows = Compare(runs, options_.batch);
  const std::string table = ScalingTable(rows);
  if (options_.json) {
    Print(ScalingJson(rows));
  } else if (!rows.empty()) {
    Print(table);
  }
  if (rows.empty()) return code;
  const std::string title =
      absl::StrCat("scaling of ", Escape(absl::StrJoin(options_.command, " "), 90));
  return Finish(code, title, ScalingPlot(rows, title), table);
}

}  // namespace

int Run(const Options& options, const std::vector<std::string>& environment) {
  if (!options.help.empty()) {
    Print(options.help);
    return kExitOk;
  }
  if (!options.plot.empty()) {
    const absl::Status status = report::CheckWritable("--plot", options.plot);
    if (!status.ok()) {
      Complain(status.message());
      return kExitUsage;
    }
  }
  return Session(options, environment).Run();
}

}  // namespace dtrain::bench
