// SPDX-License-Identifier: Apache-2.0
#include "launcher/elastic/texts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"
#include "launcher/job/outcome.h"

namespace dtrain::elastic {
namespace {

constexpr size_t kMostNamed = 5;  // hosts or ranks in one line

std::string Are(size_t n, const char* noun, const char* verb) {
  return absl::StrCat(Count(n, noun), n == 1 ? " is " : " are ", verb);
}

std::string ListText(std::vector<std::string> names) {
  const size_t more = names.size() > kMostNamed ? names.size() - kMostNamed : 0;
  names.resize(names.size() - more);
  std::string text = absl::StrJoin(names, ", ");
  if (more > 0) absl::StrAppend(&text, " and ", more, " more");
  return text;
}

}  // namespace

std::string WantText(const Least& least, const Plan& plan, bool first_round) {
  if (plan.ranks < least.ranks) {
    return absl::StrCat(Are(least.ranks, "rank", "needed"),
                        first_round ? " (-np), " : " (--min-np), ", plan.ranks,
                        plan.ranks == 1 ? " is there" : " are there");
  }
  return absl::StrCat(Are(least.hosts, "host", "needed"), ", ", plan.hosts,
                      plan.hosts == 1 ? " is there" : " are there");
}

std::string MissingText(const std::vector<MissingHost>& missing) {
  if (missing.empty()) return "";
  std::vector<std::string> names;
  names.reserve(missing.size());
  for (const MissingHost& each : missing) {
    names.push_back(each.why.empty() ? each.host : absl::StrCat(each.host, " (", each.why, ")"));
  }
  return absl::StrCat("; missing: ", ListText(std::move(names)));
}

std::string JoinText(std::vector<std::string> hosts) {
  const bool one = hosts.size() == 1;
  return absl::StrCat(ListText(std::move(hosts)), one ? " joins the job" : " join the job");
}

std::string RoundText(uint64_t round, const Plan& plan) {
  return absl::StrCat("round ", round, " has ", Count(plan.ranks, "rank"), " on ",
                      Count(plan.places.size(), "host"));
}

std::string StuckText(const Runs& runs, const Failure& first, Duration since) {
  std::vector<std::string> names;
  size_t members = 0;
  for (const auto& [id, run] : runs) {
    if (!run.seated) continue;
    members += run.records.size();
    for (size_t i = 0; i < run.records.size(); ++i) {
      if (run.records[i] != Record::kNone) continue;
      names.push_back(absl::StrCat("rank ", run.first_number + i, " on ", run.host));
    }
  }
  const size_t count = names.size();
  return absl::StrCat(count, " of ", Count(members, "rank"), count == 1 ? " has" : " have",
                      " neither ended nor come back for the next round in the ",
                      job::FormatSeconds(since), " since ", first.host, " failed (", first.cause,
                      "): ", ListText(std::move(names)),
                      ". If they hang in a collective, end one of them or the job");
}

std::string LeftWaitingText(const Runs& runs) {
  std::vector<std::string> ended;
  size_t members = 0;
  size_t waiting = 0;
  for (const auto& [id, run] : runs) {
    if (!run.seated) continue;
    members += run.records.size();
    waiting += run.Count(Record::kReady);
    for (size_t i = 0; i < run.records.size(); ++i) {
      if (run.records[i] != Record::kSuccess) continue;
      ended.push_back(absl::StrCat("rank ", run.first_number + i, " on ", run.host));
    }
  }
  return absl::StrCat("warning: ", ListText(std::move(ended)), " ended with 0 while ", waiting,
                      " of ", Count(members, "rank"),
                      " waited for the next round: the job ends as successful, though they had not "
                      "finished");
}

std::string LateText(const Run& run, Duration limit) {
  const size_t here =
      std::min<size_t>(run.waiting + run.Count(Record::kSuccess), run.records.size());
  return absl::StrCat(run.records.size() - here, " of ", Count(run.records.size(), "rank"),
                      run.records.size() - here == 1 ? " has" : " have",
                      " not called hvd.init() within ", job::FormatSeconds(limit),
                      "; is it an elastic Horovod script?");
}

}  // namespace dtrain::elastic
