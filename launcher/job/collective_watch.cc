// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/collective_watch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/collective_name.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {
namespace {

constexpr size_t kMostLateNamed = 8;  // of the ranks that hold the others up

std::string List(std::vector<std::string> names) {
  if (names.size() <= kMostLateNamed) return absl::StrJoin(names, ", ");
  const size_t more = names.size() - kMostLateNamed;
  names.resize(kMostLateNamed);
  return absl::StrCat(absl::StrJoin(names, ", "), " and ", more, " more");
}

}  // namespace

void CollectiveWatch::OnProgress(TimePoint now, const v1::RankProgress& progress) {
  if (ranks_.size() <= progress.rank()) ranks_.resize(progress.rank() + 1);
  Entry& entry = ranks_[progress.rank()];
  const bool same = entry.known && entry.since != kNever && progress.inside() &&
                    entry.last.number() == progress.number() &&
                    entry.last.group() == progress.group();
  entry.last = progress;
  // A worker may claim to be in there since before time began.
  const auto inside =
      std::chrono::nanoseconds(std::clamp<int64_t>(progress.inside_nanos(), 0, int64_t{1} << 60));
  const TimePoint since = !progress.inside() ? kNever : same ? entry.since : now - inside;
  Set(progress.rank(), progress.joined(), since);
}

void CollectiveWatch::OnEnded(uint32_t rank) {
  if (rank >= ranks_.size()) return;
  Set(rank, /*known=*/false, kNever);
  ranks_[rank].last.Clear();
}

void CollectiveWatch::Set(uint32_t rank, bool known, TimePoint since) {
  Entry& entry = ranks_[rank];
  if (entry.known && entry.since != kNever) inside_.erase({entry.since, rank});
  entry.known = known;
  entry.since = since;
  if (known && since != kNever) inside_.emplace(since, rank);
}

TimePoint CollectiveWatch::oldest() const {
  return inside_.empty() ? kNever : inside_.begin()->first;
}

std::string CollectiveWatch::Explain(TimePoint now, const Name& name) const {
  if (inside_.empty()) return "";
  const Entry* oldest = &ranks_[inside_.begin()->second];
  const v1::RankProgress& last = oldest->last;
  std::string text = absl::StrCat(
      name(last.rank()), " has been inside collective ", last.number(),
      last.group() == 0 ? "" : " of a group", " (", CollectiveName(last.kind()), ", ", last.bytes(),
      " bytes) for ",
      FormatSeconds(std::chrono::duration_cast<std::chrono::seconds>(now - oldest->since)));
  return absl::StrCat(text, ": ", Culprits(*oldest, name));
}

// A collective of all ranks has the same number on each. Of a group we do not know the members.
std::string CollectiveWatch::Culprits(const Entry& oldest, const Name& name) const {
  std::vector<std::string> stopped, behind, elsewhere, past;
  const Entry* latest = &oldest;
  for (const Entry& entry : ranks_) {
    if (!entry.known) continue;
    const v1::RankProgress& last = entry.last;
    if (last.stopped()) stopped.push_back(name(last.rank()));
    if (oldest.last.group() != 0 || last.group() != 0) continue;
    const bool same = last.number() == oldest.last.number();
    if (entry.since != kNever && same && entry.since > latest->since) latest = &entry;
    const bool left = same && entry.since == kNever && last.operations() > 0;
    if (last.number() > oldest.last.number() || left) {
      past.push_back(name(last.rank()));
    }
    if (last.number() >= oldest.last.number()) continue;
    (entry.since != kNever ? elsewhere : behind)
        .push_back(
            absl::StrCat(name(last.rank()), last.operations() == 0 && entry.since == kNever
                                                ? std::string(" (before its first)")
                                                : absl::StrCat(" (at ", last.number(), ")")));
  }
  if (!stopped.empty()) return absl::StrCat(List(stopped), " is stopped (SIGSTOP or a debugger)");
  if (!behind.empty()) {
    return absl::StrCat("it waits for ", List(behind), ", busy outside of collectives");
  }
  if (!elsewhere.empty()) {
    return absl::StrCat("it waits for ", List(elsewhere), ", inside an earlier collective");
  }
  if (!past.empty()) {
    return absl::StrCat("no rank is behind, ", List(past), past.size() > 1 ? " have" : " has",
                        " left it already; the network between them may be broken");
  }
  if (latest != &oldest) {
    return absl::StrCat("no rank is behind, ", name(latest->last.rank()),
                        " was the last to come; the network between them may be broken");
  }
  return oldest.last.group() != 0
             ? "the other members of that group are not known here"
             : "no rank is known to be behind; the network between them may be broken";
}

}  // namespace dtrain::job
