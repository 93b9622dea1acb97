// SPDX-License-Identifier: Apache-2.0
#include "launcher/job/own_pauses.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/job/lease_watch.h"
#include "launcher/job/outcome.h"

namespace dtrain::job {
namespace {

// After a pause of our own, and what nodes need to end what they run: for word of that to arrive.
constexpr Duration kStillSettle = std::chrono::seconds(5);

constexpr char kStoodStillHow[] = " (stopped, asleep or without CPU time)";

}  // namespace

void OwnPauses::OnSlept(const Event& event) {
  StoodStill(cluster_.now(), std::get<Slept>(event).length);
}

// A starved process has many short pauses. They are one when it runs less than it stands still.
void OwnPauses::StoodStill(TimePoint begin, Duration length) {
  const Duration ran = std::max(begin - still_until_, Duration::zero());
  still_ = std::max(still_ - ran, Duration::zero()) + length;
  still_until_ = cluster_.now();
}

Duration OwnPauses::Patience() const {
  return std::max(cluster_.options().lease, cluster_.options().away);
}

bool OwnPauses::MayHaveEndedTheJob() const {
  const JobOptions& options = cluster_.options();
  return still_ > Duration::zero() && still_ >= Patience() - 2 * BeatPeriod(options) &&
         cluster_.now() <= still_until_ + Patience() + options.grace + kStillSettle;
}

bool OwnPauses::Blame() {
  if (stop_.verdicts().is_own_pause()) return true;
  if (!stop_.verdicts().none() || !MayHaveEndedTheJob()) return false;
  stop_.Stop(Cause::OwnPause(Message()));
  return true;
}

void OwnPauses::BlameForRank(FailureOrder order) {
  Cause cause = Cause::OwnPause(Message());
  cause.order = order;
  stop_.Stop(std::move(cause));
}

std::string OwnPauses::Message() const {
  return absl::StrCat("this launcher did not run for ", FormatSeconds(still_), kStoodStillHow,
                      ", and nodes end a job's workers when its launcher is silent for ",
                      FormatSeconds(Patience()), "; ",
                      cluster_.options().away > cluster_.options().lease ? "--away" : "--lease",
                      " TIME lets them wait longer");
}

std::string OwnPauses::WithThem(std::string text) const {
  if (!stop_.verdicts().is_own_pause() && MayHaveEndedTheJob()) {
    absl::StrAppend(&text, "; this launcher had not run for ", FormatSeconds(still_),
                    kStoodStillHow);
  }
  return text;
}

}  // namespace dtrain::job
