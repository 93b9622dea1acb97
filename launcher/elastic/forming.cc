// SPDX-License-Identifier: Apache-2.0
#include "launcher/elastic/forming.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/elastic/texts.h"
#include "launcher/job/outcome.h"

namespace dtrain::elastic {

Forming::Result Forming::Try(TimePoint now, uint64_t round, uint32_t resets, TimePoint by) {
  if (runs_.MakesRoom()) return Result::kWaits;
  runs_.Sweep(false);
  const Plan made = plan();
  const Least& least = options_.least(round);
  const bool enough = made.IsEnough(least);
  // A host that is not listed for a moment may be back before there are enough.
  if (round > 1 && (!runs_.HasSurvivor() || (enough && made.survivors == 0))) {
    return Result::kStateLost;
  }
  if (enough) {
    if (MakeRoom(made)) return Result::kWaits;
    Form(made, round, resets);
    return Result::kForms;
  }
  if (!MayBeEnough(least)) return Result::kNotEnough;
  if (std::exchange(said_, true)) return Result::kWaits;
  const std::string departures = failures_.TakeDepartures();
  out_.Say(absl::StrCat(departures, departures.empty() ? "" : "; ",
                        WantText(least, made, round == 1), ": waiting up to ",
                        job::FormatSeconds(std::max(by - now, Duration::zero())), " for hosts",
                        Missing()));
  return Result::kWaits;
}

// False: of the fixed hosts too many are out for ever.
bool Forming::MayBeEnough(const Least& least) const {
  if (options_.fixed_hosts.empty()) return true;
  uint64_t ranks = 0;
  uint64_t hosts = 0;
  for (const std::string& host : options_.fixed_hosts) {
    if (book_.IsDeniedForEver(host)) continue;
    const auto found = book_.found().find(host);
    if (found == book_.found().end()) return true;
    ranks += found->second;
    ++hosts;
  }
  return ranks >= least.ranks && hosts >= least.hosts;
}

// True: runs must end first, whose hosts are in the plan.
bool Forming::MakeRoom(const Plan& plan) {
  bool waits = false;
  for (auto& [id, run] : runs_.all()) {
    if (!run.lives()) continue;
    const Plan::Place* place = plan.Of(id);
    if (place == nullptr) {
      const bool is_found = book_.found().count(run.host) > 0;
      const std::string why =
          is_found ? "there is no place for it any more" : "the host is not listed any more";
      if (run.joined) failures_.Leave(run.host, why);
      out_.Stop(id, run, why);
      run.seated = false;
    } else if (!run.joined && !Same(place->seats, run.seats)) {
      // Its workers have the seats that they began with in their environment.
      out_.Stop(id, run, "it begins again, with other ranks");
      run.seated = false;
      run.again = waits = true;
    }
  }
  return waits;
}

void Forming::Form(const Plan& plan, uint64_t round, uint32_t resets) {
  std::vector<std::string> parts;
  std::string departures = failures_.TakeDepartures();
  if (!departures.empty()) parts.push_back(std::move(departures));
  std::vector<std::string> come;
  for (const Plan::Place& place : plan.places) {
    if (place.run) {
      runs_.Find(*place.run)->seats = place.seats;
      continue;
    }
    const uint32_t number = runs_.next_number();
    const RunId id = runs_.Begin(place.host, place.seats);
    out_.Do(BeginRun{id, place.host, number, place.seats});
    come.push_back(place.host);
  }
  if (round == 1 && parts.empty()) return;
  if (round > 1 && !come.empty()) parts.push_back(JoinText(std::move(come)));
  parts.push_back(RoundText(round, plan));
  out_.Say(absl::StrCat(absl::StrJoin(parts, "; "),
                        resets > 0 ? absl::StrCat(" (reset ", resets, ")") : ""));
}

std::string Forming::Want(uint64_t round) const {
  return WantText(options_.least(round), plan(), round == 1);
}

// Those denied are there, and missing all the same.
std::string Forming::Missing() const {
  std::vector<MissingHost> missing = missing_;
  std::set<std::string> usable;
  for (const HostSlots& each : book_.usable()) usable.insert(each.host);
  for (const auto& [host, slots] : book_.found()) {
    if (usable.count(host) == 0) missing.push_back({host, failures_.CauseOf(host)});
  }
  return MissingText(missing);
}

}  // namespace dtrain::elastic
