// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/elastic_store.h"

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace dtrain::stores {
namespace {

constexpr absl::string_view kPlaces = "rank_and_size", kAddresses = "worker_addresses";
constexpr absl::string_view kProcessSet = "_process_set_hash_";
// What a client takes for "you have been removed", and ends by.
constexpr absl::string_view kNoSeat = "-1,-1,-1,-1,-1,-1";

// Of all requests that wait at the shut door. A rank waits with one, of some hundred bytes.
constexpr size_t kMostHeldBytes = 32 << 20;
constexpr size_t kPerHeld = 512;
// What the ranks of a host may tell the launcher in a round: half of what the shepherd keeps for it
// until it has it (link::kToLauncher), as more ends the job. Addresses of 8 ranks among 1024 are
// 4 MB.
constexpr size_t kMostRaisedBytes = 32 << 20;
constexpr size_t kPerRaised = 128;

// A scope in which all of a set of ranks meet, once a round.
bool IsMeetingOfRanks(absl::string_view scope) {
  if (absl::StrContains(scope, kProcessSet)) return false;
  return scope == "global" || absl::StartsWith(scope, "local_") ||
         absl::StartsWith(scope, "cross_");
}

}  // namespace

ElasticStore::ElasticStore(std::string host, uint32_t slots)
    : local_scope_(absl::StrCat("local_", host)),
      host_(std::move(host)),
      slots_(slots),
      values_(v1::Meeting()) {}

ElasticStore::Out ElasticStore::OnRequest(Ticket ticket, absl::string_view verb,
                                          absl::string_view target, std::string body) {
  Out out;
  const std::optional<HorovodStore::Place> place = HorovodStore::PlaceOf(target);
  Request request{std::string(verb), std::string(target), std::move(body)};
  const bool known = verb == "GET" || verb == "PUT" || verb == "DELETE";
  if (!place || !known) {
    out.replies.push_back({ticket, values_.Handle(verb, target, "")});
  } else if (verb == "PUT" && place->scope == kAddresses) {
    // By a script of Python, which waits 60 s for the answer; nothing of it is of a round.
    Register(ticket, place->key, request.body, out);
  } else if (is_shut()) {
    Hold(ticket, std::move(request), out);
  } else {
    Serve(ticket, std::move(request), *place, out);
  }
  return out;
}

void ElasticStore::Hold(Ticket ticket, Request request, Out& out) {
  const size_t cost = request.target.size() + request.body.size() + kPerHeld;
  if (held_bytes_ + cost > kMostHeldBytes) {
    out.replies.push_back({ticket, {503, ""}});
    return;
  }
  held_bytes_ += cost;
  held_.emplace(ticket, std::move(request));
  TellWaiting(out);
}

void ElasticStore::Serve(Ticket ticket, Request request, const HorovodStore::Place& place,
                         Out& out) {
  if (place.scope == kPlaces && request.verb == "GET") return AskForPlace(ticket, place.key, out);
  if (request.verb == "DELETE") return Remove(ticket, std::move(request), place, out);
  const bool goes_up = request.verb == "PUT" && !IsOfThisHost(place.scope);
  v1::ElasticUp up;
  if (goes_up) {
    up.mutable_put()->set_scope(place.scope);
    up.mutable_put()->set_key(place.key);
    up.mutable_put()->set_value(request.body);
  }
  HorovodStore::Reply reply = values_.Handle(request.verb, request.target, std::move(request.body));
  if (goes_up && reply.status == 200 && !Raise(std::move(up), out)) reply = {507, ""};
  out.replies.push_back({ticket, std::move(reply)});
}

// It has left the round. Never 404, which a client takes for rank 0 of no ranks.
void ElasticStore::AskForPlace(Ticket ticket, const std::string& slot, Out& out) {
  const uint32_t local_rank = LocalRankOf(slot);
  if (local_rank == slots_) {
    out.replies.push_back({ticket, {200, std::string(kNoSeat)}});
    return;
  }
  askers_[local_rank].insert(ticket);
  if (!asked_.insert(local_rank).second) return;  // again, on another connection
  v1::ElasticUp up;
  up.set_asked(local_rank);
  (void)Raise(std::move(up), out);
}

void ElasticStore::Register(Ticket ticket, const std::string& slot, absl::string_view address,
                            Out& out) {
  HorovodStore::Reply reply;
  if (const uint32_t local_rank = LocalRankOf(slot); local_rank != slots_) {
    v1::ElasticUp up;
    v1::ElasticRegistered& registered = *up.mutable_registered();
    registered.set_local_rank(local_rank);
    addresses_.erase(local_rank);
    if (auto read = ReadWorkerAddress(address); read.ok()) {
      addresses_[local_rank] = *std::move(read);
    } else {
      registered.set_not_understood(std::string(read.status().message()));
    }
    if (!Raise(std::move(up), out)) reply.status = 507;
  }
  out.replies.push_back({ticket, std::move(reply)});
}

// In a meeting of ranks it says "I am done": its values are used once, and go with the round. Those
// of a process set may come again in the same round, and an old one must not be found then.
void ElasticStore::Remove(Ticket ticket, Request request, const HorovodStore::Place& place,
                          Out& out) {
  if (IsMeetingOfRanks(place.scope)) {
    out.replies.push_back({ticket, {200, ""}});
    return;
  }
  HorovodStore::Reply reply = values_.Handle(request.verb, request.target, "");
  if (!IsOfThisHost(place.scope)) {
    v1::ElasticUp up;
    up.mutable_removed()->set_scope(place.scope);
    up.mutable_removed()->set_key(place.key);
    up.mutable_removed()->set_id(last_removal_ + 1);
    if (Raise(std::move(up), out)) {
      removals_[++last_removal_] = ticket;
      return;
    }
    reply = {507, ""};
  }
  out.replies.push_back({ticket, std::move(reply)});
}

ElasticStore::Out ElasticStore::OnGone(Ticket ticket) {
  Out out;
  if (const auto held = held_.find(ticket); held != held_.end()) {
    held_bytes_ -= held->second.target.size() + held->second.body.size() + kPerHeld;
    held_.erase(held);
    TellWaiting(out);
  }
  // Who has asked has left the round for good.
  for (auto& [local_rank, tickets] : askers_) tickets.erase(ticket);
  std::erase_if(removals_, [ticket](const auto& removal) { return removal.second == ticket; });
  return out;
}

ElasticStore::Out ElasticStore::OnDown(const v1::ElasticDown& down) {
  Out out;
  if (down.has_open()) {
    if (down.round() > round_) Open(down, out);
    return out;
  }
  if (is_shut() || down.round() != round_) return out;
  if (down.has_put()) {
    const v1::ElasticValue& put = down.put();
    // If there is no room for it, the ranks here ask for it in vain until Gloo's time limit ends
    // them.
    (void)values_.Handle("PUT", absl::StrCat("/", put.scope(), "/", put.key()), put.value());
  } else if (down.has_removed()) {
    const v1::ElasticRemoval& removed = down.removed();
    (void)values_.Handle("DELETE", absl::StrCat("/", removed.scope(), "/", removed.key()), "");
    v1::ElasticUp up;
    up.set_applied(removed.id());
    (void)Raise(std::move(up), out);
  } else if (down.has_applied_everywhere()) {
    if (const auto done = removals_.find(down.applied_everywhere()); done != removals_.end()) {
      out.replies.push_back({done->second, {200, ""}});
      removals_.erase(done);
    }
  } else if (down.has_notice()) {
    if (AddressOf(down.notice().local_rank()) != nullptr) {
      out.to_worker.push_back(down.notice());
    } else {
      v1::ElasticNoticed noticed;
      noticed.set_local_rank(down.notice().local_rank());
      noticed.set_timestamp(down.notice().timestamp());
      noticed.set_failed("it has not said where it hears of changes");
      return OnNoticed(std::move(noticed));
    }
  }
  return out;
}

void ElasticStore::Open(const v1::ElasticDown& down, Out& out) {
  round_ = down.round();
  seats_ = down.open();
  values_ = HorovodStore(v1::Meeting());
  raised_bytes_ = 0;
  asked_.clear();
  // What they wanted gone is gone.
  for (const auto& [id, ticket] : std::exchange(removals_, {})) {
    out.replies.push_back({ticket, {200, ""}});
  }
  for (const auto& [local_rank, tickets] : std::exchange(askers_, {})) {
    for (const Ticket ticket : tickets) out.replies.push_back({ticket, {200, SeatOf(local_rank)}});
  }
  held_bytes_ = 0;
  for (auto& [ticket, request] : std::exchange(held_, {})) {
    const HorovodStore::Place place = *HorovodStore::PlaceOf(request.target);
    if (place.scope == kPlaces && request.verb == "GET") {
      out.replies.push_back({ticket, {200, SeatOf(LocalRankOf(place.key))}});
    } else {
      Serve(ticket, std::move(request), place, out);
    }
  }
}

ElasticStore::Out ElasticStore::OnNoticed(v1::ElasticNoticed noticed) {
  Out out;
  v1::ElasticUp up;
  *up.mutable_noticed() = std::move(noticed);
  (void)Raise(std::move(up), out);
  return out;
}

void ElasticStore::TellWaiting(Out& out) {
  v1::ElasticUp up;
  up.set_waiting(static_cast<uint32_t>(held_.size()));
  (void)Raise(std::move(up), out);
}

bool ElasticStore::Raise(v1::ElasticUp up, Out& out) {
  up.set_round(round_);
  // These are as many as ranks, or as the launcher has asked for, and a job without them would
  // hang.
  const bool is_bounded = up.has_asked() || up.has_applied() || up.has_noticed();
  const size_t cost = up.ByteSizeLong() + kPerRaised;
  if (!is_bounded && raised_bytes_ + cost > kMostRaisedBytes) return false;
  raised_bytes_ += cost;
  out.up.push_back(std::move(up));
  return true;
}

const WorkerAddress* ElasticStore::AddressOf(uint32_t local_rank) const {
  const auto found = addresses_.find(local_rank);
  return found == addresses_.end() ? nullptr : &found->second;
}

size_t ElasticStore::waiting() const {
  size_t waiting = held_.size() + removals_.size();
  for (const auto& [local_rank, tickets] : askers_) waiting += tickets.size();
  return waiting;
}

uint32_t ElasticStore::LocalRankOf(absl::string_view slot) const {
  const size_t colon = slot.rfind(':');
  uint32_t local_rank = 0;
  const bool is_ours = colon != slot.npos && slot.substr(0, colon) == host_ &&
                       absl::SimpleAtoi(slot.substr(colon + 1), &local_rank) && local_rank < slots_;
  return is_ours ? local_rank : slots_;
}

std::string ElasticStore::SeatOf(uint32_t local_rank) const {
  if (local_rank >= static_cast<size_t>(seats_.seats_size())) return std::string(kNoSeat);
  const v1::Seat& seat = seats_.seats(static_cast<int>(local_rank));
  if (seat.size() == 0) return std::string(kNoSeat);
  return absl::StrCat(seat.rank(), ",", seat.size(), ",", seat.local_rank(), ",", seat.local_size(),
                      ",", seat.cross_rank(), ",", seat.cross_size());
}

bool ElasticStore::IsOfThisHost(absl::string_view scope) const {
  return scope == local_scope_ || absl::StartsWith(scope, absl::StrCat(local_scope_, kProcessSet));
}

}  // namespace dtrain::stores
