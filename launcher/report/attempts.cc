// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/attempts.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/text.h"
#include "launcher/report/failure_report.h"

namespace dtrain::report {
namespace {

// Lines that are shown from either end.
constexpr size_t kShown = 10;

std::string AttemptLine(const job::AttemptRecord& record) {
  const std::string ran =
      record.ran > Duration::zero() ? absl::StrCat(", ran ", Seconds(record.ran)) : ", not started";
  return absl::StrCat("  attempt ", record.attempt, ran, ": ",
                      record.cause.empty() ? "succeeded" : record.cause, "\n");
}

std::string VerdictLine(const JobFacts& facts) {
  const job::Verdict& verdict = facts.verdict;
  if (verdict.kind == job::Verdict::Kind::kWorker) {
    const auto first =
        std::find_if(facts.ranks.begin(), facts.ranks.end(),
                     [&](const job::RankEnd& end) { return end.rank == verdict.rank; });
    if (first == facts.ranks.end()) return absl::StrCat("rank ", verdict.rank.value(), " failed");
    const std::string line =
        absl::StrCat("rank ", verdict.rank.value(), " on ", Escape(HostOf(facts, first->node)), " ",
                     DescribeBlamed(facts, *first));
    // Whose end explains that; not what may be left.
    const absl::string_view why = verdict.message;
    return absl::StrContains(why, '?') ? absl::StrCat(line, "; ", why.substr(0, why.find('\n')))
                                       : line;
  }
  const std::vector<absl::string_view> lines = absl::StrSplit(verdict.message, '\n');
  std::string line(absl::StripAsciiWhitespace(lines[0]));
  // A heading.
  if (lines.size() > 1 && !line.empty() && line.back() == ':') {
    absl::StrAppend(&line, " ", absl::StripAsciiWhitespace(lines[1]));
    if (lines.size() > 2) absl::StrAppend(&line, ", ...");
  }
  return line;
}

}  // namespace

std::string CauseLine(const JobFacts& facts) {
  std::string line = VerdictLine(facts);
  const job::GpuFault* gpu = LikelyCause(facts);
  return gpu == nullptr ? line : absl::StrCat(line, "; ", GpuText(facts, *gpu));
}

std::string AttemptLines(const std::vector<job::AttemptRecord>& ended) {
  std::string lines;
  for (size_t i = 0; i < ended.size(); ++i) {
    if (i == kShown && ended.size() > 2 * kShown) {
      absl::StrAppend(&lines, "  ... ", ended.size() - 2 * kShown, " more\n");
      i = ended.size() - kShown;
    }
    lines += AttemptLine(ended[i]);
  }
  return lines;
}

}  // namespace dtrain::report
