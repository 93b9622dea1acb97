// SPDX-License-Identifier: Apache-2.0
#include "launcher/elastic/runs.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace dtrain::elastic {

size_t Run::Count(Record record) const {
  return static_cast<size_t>(std::count(records.begin(), records.end(), record));
}

bool Run::Stays() const { return seated && joined && !ending && Count(Record::kFailure) == 0; }

bool Run::IsHere() const { return waiting + Count(Record::kSuccess) >= records.size(); }

RunId RunTable::Begin(const std::string& host, HostSeats seats) {
  Run run;
  run.host = host;
  run.first_number = next_number_;
  run.records.resize(seats.size());
  run.takes_notices.resize(seats.size());
  run.seats = std::move(seats);
  run.seated = true;
  next_number_ += static_cast<uint32_t>(run.seats.size());
  const RunId id = next_;
  next_ = RunId(id.value() + 1);
  all_.emplace(id, std::move(run));
  return id;
}

Run* RunTable::Find(RunId id) {
  const auto run = all_.find(id);
  return run == all_.end() ? nullptr : &run->second;
}

const Run* RunTable::Find(RunId id) const {
  const auto run = all_.find(id);
  return run == all_.end() ? nullptr : &run->second;
}

Run* RunTable::Living(RunId id, uint32_t local_rank) {
  Run* run = Find(id);
  return run != nullptr && run->lives() && local_rank < run->records.size() ? run : nullptr;
}

void RunTable::Fail(Run& run) {
  for (Record& record : run.records) {
    if (record != Record::kSuccess) record = Record::kFailure;
  }
}

std::map<RunId, HostSeats> RunTable::Open() {
  std::map<RunId, HostSeats> seats;
  for (auto& [id, run] : all_) {
    if (!run.seated) continue;
    // What a newcomer's worker did before counts.
    if (run.joined) run.records.assign(run.records.size(), Record::kNone);
    run.joined = true;
    if (!run.over) seats.emplace(id, run.seats);
  }
  return seats;
}

void RunTable::Close() {
  for (auto& [id, run] : all_) {
    if (run.Count(Record::kFailure) > 0) run.seated = false;
  }
}

void RunTable::Sweep(bool keep_seated) {
  std::erase_if(all_, [keep_seated](const auto& each) {
    return each.second.over && !(keep_seated && each.second.seated);
  });
}

Tally RunTable::Records() const {
  Tally tally;
  for (const auto& [id, run] : all_) {
    if (!run.seated) continue;
    tally.none += run.Count(Record::kNone);
    tally.ready += run.Count(Record::kReady);
    tally.success += run.Count(Record::kSuccess);
    tally.failure += run.Count(Record::kFailure);
  }
  return tally;
}

std::pair<RunId, const Run*> RunTable::Coordinator() const {
  for (const auto& [id, run] : all_) {
    if (run.seated && run.lives() && run.seats.front().rank() == 0) return {id, &run};
  }
  return {RunId(), nullptr};
}

bool RunTable::CanTellCoordinator() const {
  const Run* run = Coordinator().second;
  return run != nullptr && run->records.front() == Record::kNone && run->takes_notices.front();
}

bool RunTable::MakesRoom() const {
  return std::any_of(all_.begin(), all_.end(),
                     [](const auto& each) { return each.second.again && !each.second.over; });
}

bool RunTable::HasSurvivor() const {
  return std::any_of(all_.begin(), all_.end(),
                     [](const auto& each) { return each.second.lives() && each.second.Stays(); });
}

bool Plan::IsEnough(const Least& least) const {
  return ranks >= least.ranks && hosts >= least.hosts;
}

const Plan::Place* Plan::Of(RunId run) const {
  const auto place =
      std::find_if(places.begin(), places.end(), [run](const Place& p) { return p.run == run; });
  return place == places.end() ? nullptr : &*place;
}

Plan MakePlan(const Most& most, const std::vector<HostSlots>& usable, const Runs& runs) {
  std::map<std::string, RunId> run_of;
  for (const auto& [id, run] : runs) {
    if (!run.over || run.Stays()) run_of.emplace(run.host, id);
  }
  std::vector<Plan::Place> stay, come;
  std::vector<uint32_t> slots, slots_to_come;
  for (const HostSlots& each : usable) {
    Plan::Place place;
    place.host = each.host;
    const auto id = run_of.find(each.host);
    if (id != run_of.end()) {
      const Run& run = runs.at(id->second);
      place.run = id->second;
      if (run.Stays()) {
        stay.push_back(std::move(place));
        slots.push_back(static_cast<uint32_t>(run.seats.size()));
        continue;
      }
      if (run.ending) continue;
    }
    come.push_back(std::move(place));
    slots_to_come.push_back(each.slots);
  }
  const size_t stays = stay.size();
  Plan plan;
  plan.places = std::move(stay);
  std::move(come.begin(), come.end(), std::back_inserter(plan.places));
  slots.insert(slots.end(), slots_to_come.begin(), slots_to_come.end());
  if (most.hosts && plan.places.size() > *most.hosts) {
    plan.places.resize(*most.hosts);
    slots.resize(*most.hosts);
  }
  plan.hosts = plan.places.size();
  plan.survivors = std::min(stays, plan.hosts);
  std::vector<HostSeats> seats = Assign(slots, most.ranks);
  for (size_t i = 0; i < seats.size(); ++i) {
    plan.ranks += static_cast<uint32_t>(seats[i].size());
    plan.places[i].seats = std::move(seats[i]);
  }
  std::erase_if(plan.places, [](const Plan::Place& place) { return place.seats.empty(); });
  return plan;
}

bool IsPresent(const Plan& plan, const Runs& runs) {
  size_t seated = 0;
  for (const auto& [id, run] : runs) seated += run.seated ? 1 : 0;
  return plan.places.size() == seated &&
         std::all_of(plan.places.begin(), plan.places.end(), [&runs](const Plan::Place& place) {
           return place.run && runs.at(*place.run).seated &&
                  Same(place.seats, runs.at(*place.run).seats);
         });
}

}  // namespace dtrain::elastic
