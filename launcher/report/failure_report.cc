// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/failure_report.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/exit_code.h"
#include "common/base/text.h"
#include "launcher/job/blame.h"
#include "launcher/job/outcome.h"
#include "launcher/report/attempts.h"
#include "launcher/report/worker_error.h"

namespace dtrain::report {
namespace {

constexpr size_t kTailLines = 20;
constexpr size_t kTailLine = 2000;  // bytes shown of one
constexpr size_t kHeadLine = 500;   // of an exception's text
constexpr size_t kNamedSecondaries = 8;

std::string SignalText(int signal) {
  const absl::string_view name = SignalName(signal);
  return name.empty() ? absl::StrCat("signal ", signal)
                      : absl::StrCat("signal ", signal, " (", name, ")");
}

// Why the kernel killed, and what helps.
std::string MemoryLimit(const v1::WorkerExit& exit) {
  if (exit.memory_limit_bytes() == 0) {
    return " (it has no cgroup limit; the node ran out of memory: use less, or place fewer ranks "
           "there)";
  }
  const double mib = static_cast<double>(exit.memory_limit_bytes()) / (1 << 20);
  return absl::StrFormat(" (the limit of its cgroup is %.0f MiB: raise it, or use less)", mib);
}

const job::RankEnd* FindRank(const JobFacts& facts, Rank rank) {
  for (const job::RankEnd& end : facts.ranks) {
    if (end.rank == rank) return &end;
  }
  return nullptr;
}

// "failed 0.42 s before rank 0 exited with code 1, and had not ended itself"
std::string DescribeSign(const job::RankEnd& first, const job::RankEnd& exited) {
  const std::chrono::nanoseconds before(exited.ended_unix_nanos - first.seen.unix_nanos);
  const absl::string_view what = first.seen.sign == job::Sign::kKilled  ? "saw its program killed"
                                 : first.seen.sign == job::Sign::kCrash ? "crashed"
                                                                        : "raised an exception";
  return absl::StrCat(
      what, " ",
      before.count() > 0 ? Seconds(std::chrono::duration_cast<Duration>(before)) : "a moment",
      " before rank ", exited.rank.value(), " ", DescribeEnd(exited.exit),
      ", and had not ended itself");
}

// ", which dtrain passed on from bash (pid 17, root)", behind DescribeEnd.
std::string OfSignal(const job::Verdict& verdict, const v1::WorkerExit& exit) {
  const auto& [signal, from] = verdict.passed_on;
  if (signal == 0) return "";
  const std::string text =
      absl::StrCat(", which dtrain passed on", from.empty() ? "" : absl::StrCat(" from ", from),
                   "; a program that has no handler for it yet ends");
  return exit.signal() != 0 ? text : absl::StrCat(" (", SignalText(signal), text, ")");
}

std::string WhoFailedFirst(const JobFacts& facts, const job::RankEnd& first) {
  std::string text =
      absl::StrCat("dtrain: rank ", first.rank.value(), " on ", Escape(HostOf(facts, first.node)));
  if (first.exit.pid() != 0) absl::StrAppend(&text, " (pid ", first.exit.pid(), ")");
  absl::StrAppend(&text, " ", DescribeBlamed(facts, first));
  if (!job::EndedByItself(first) || facts.verdict.passed_on.signal != 0) return text;
  if (first.exit.monotonic_nanos() > 0) {
    auto lived = std::chrono::nanoseconds(first.exit.monotonic_nanos());
    absl::StrAppend(&text, " after ", Seconds(std::chrono::duration_cast<Duration>(lived)));
  }
  return text;
}

// "dtrain: 3 other ranks failed or were stopped afterwards: 0, 1, 2"
std::string Secondaries(const JobFacts& facts, Rank first) {
  std::vector<uint32_t> failed;
  for (const job::RankEnd& end : facts.ranks) {
    if (end.rank != first && end.ended && HasFailed(end.exit)) {
      failed.push_back(end.rank.value());
    }
  }
  std::string text =
      absl::StrCat("dtrain: ", Count(facts.secondary_deaths, "other rank"), " failed or ",
                   facts.secondary_deaths == 1 ? "was" : "were", " stopped afterwards");
  if (failed.size() == facts.secondary_deaths && failed.size() <= kNamedSecondaries) {
    absl::StrAppend(&text, ": ", absl::StrJoin(failed, ", "));
  }
  return text;
}

// A tab and a backslash do no harm, and tracebacks are full of them.
std::string ShownLine(absl::string_view line, size_t limit) {
  return absl::StrReplaceAll(Escape(WithoutColours(line), limit), {{"\\\\", "\\"}, {"\\t", "\t"}});
}

// What the worker left in its error file, behind the sentence about its end: the exception, and
// what explains it unless the end of its stderr does.
std::string OwnWords(const v1::WorkerExit& exit) {
  if (exit.error_file().empty()) return "";
  const auto error = ParseErrorFile(exit.error_file());
  if (!error.ok()) {
    return absl::StrCat(" (its TORCHELASTIC_ERROR_FILE cannot be used: ",
                        std::string(error.status().message()), ")");
  }
  const absl::string_view head = error->message;
  std::string text = absl::StrCat(": ", ShownLine(head.substr(0, head.find('\n')), kHeadLine));
  const std::string& more = error->traceback.empty() ? error->message : error->traceback;
  if (!absl::StrContains(absl::StripSuffix(more, "\n"), '\n')) return text;
  if (ShowsTraceback(exit.stderr_tail(), more)) return text;
  return absl::StrCat(text, "\ndtrain: its traceback:\n", FormatTail(more));
}

std::string WorkerReport(const JobFacts& facts) {
  const job::RankEnd* first = FindRank(facts, facts.verdict.rank);
  if (first == nullptr) {
    return absl::StrCat("dtrain: rank ", facts.verdict.rank.value(), " failed first");
  }
  const std::string words = OwnWords(first->exit);
  const absl::string_view next = absl::StrContains(words, '\n') ? "\ndtrain: " : "; ";
  const std::string tail = FormatTail(first->exit.stderr_tail());
  return absl::StrCat(WhoFailedFirst(facts, *first), words,
                      tail.empty() ? "" : absl::StrCat(next, "the end of its stderr:\n", tail));
}

std::string OfGpu(const JobFacts& facts, const job::GpuFault& fault) {
  return absl::StrCat("dtrain: ", GpuText(facts, fault), ": ",
                      fault.kind == job::XidKind::kHardware  ? "a likely cause"
                      : fault.kind == job::XidKind::kProgram ? "mostly an error of the program"
                                                             : "a possible cause");
}

// Each with its cause.
std::string Attempts(const JobFacts& facts) {
  const std::string lines = AttemptLines(facts.campaign->ended());
  const std::string all = Count(facts.campaign->ended().size(), "attempt");
  // A limit of another kind, or a program, may end with that code.
  const bool used_up =
      facts.verdict.exit_code == kExitRestarts && facts.campaign->ended().back().counted;
  return absl::StrCat(used_up ? absl::StrCat("dtrain: no restarts left (--max-restarts ",
                                             facts.campaign->options().max_restarts, "):\n")
                              : absl::StrCat("dtrain: ", all, ":\n"),
                      absl::StripSuffix(lines, "\n"));
}

}  // namespace

std::string DescribeEnd(const v1::WorkerExit& exit) {
  std::string core = exit.core_dumped() ? ", core dumped" : "";
  if (exit.out_of_memory()) {
    return absl::StrCat("was killed by the kernel: out of memory", MemoryLimit(exit), core);
  }
  if (exit.aborted()) return absl::StrCat("called abort with code ", exit.abort_code());
  if (exit.signal() != 0) {
    return absl::StrCat("was killed by ", SignalText(exit.signal()), core);
  }
  return absl::StrCat("exited with code ", exit.exit_code());
}

std::string DescribeBlamed(const JobFacts& facts, const job::RankEnd& blamed) {
  const job::RankEnd* const exited =
      facts.verdict.exited_first ? FindRank(facts, *facts.verdict.exited_first) : nullptr;
  if (exited != nullptr && !job::EndedByItself(blamed)) return DescribeSign(blamed, *exited);
  return absl::StrCat(DescribeEnd(blamed.exit), OfSignal(facts.verdict, blamed.exit));
}

std::string FormatTail(absl::string_view tail) {
  std::vector<absl::string_view> lines =
      absl::StrSplit(absl::StripSuffix(tail, "\n"), '\n', absl::AllowEmpty());
  if (tail.empty()) return "";
  size_t first = lines.size() > kTailLines ? lines.size() - kTailLines : 0;
  std::string out;
  for (size_t i = first; i < lines.size(); ++i) {
    absl::string_view line = absl::StripSuffix(lines[i], "\r");
    if (size_t cr = line.rfind('\r'); cr != absl::string_view::npos) line.remove_prefix(cr + 1);
    absl::StrAppend(&out, out.empty() ? "" : "\n", "  | ", ShownLine(line, kTailLine));
  }
  return out;
}

std::string FailureReport(const JobFacts& facts) {
  const job::Verdict& verdict = facts.verdict;
  if (verdict.kind == job::Verdict::Kind::kSuccess || verdict.kind == job::Verdict::Kind::kNone) {
    return "";
  }
  std::vector<std::string> parts;
  if (verdict.kind == job::Verdict::Kind::kWorker) parts.push_back(WorkerReport(facts));
  if (!verdict.message.empty()) parts.push_back(absl::StrCat("dtrain: ", verdict.message));
  if (const job::GpuFault* gpu = LikelyCause(facts)) parts.push_back(OfGpu(facts, *gpu));
  if (facts.secondary_deaths > 0 && verdict.kind == job::Verdict::Kind::kWorker) {
    parts.push_back(Secondaries(facts, verdict.rank));
  }
  if (facts.campaign != nullptr && facts.campaign->ended().size() > 1) {
    parts.push_back(Attempts(facts));
  }
  parts.push_back(absl::StrCat("dtrain: exit code ", verdict.exit_code));
  return absl::StrJoin(parts, "\n");
}

}  // namespace dtrain::report
