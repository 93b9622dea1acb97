// SPDX-License-Identifier: Apache-2.0
#include "launcher/elastic/board.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace dtrain::elastic {

std::vector<Board::Send> Board::Open(const OpenRound& round) {
  round_ = round.round;
  runs_.clear();
  removals_.clear();
  asked_.clear();
  put_bytes_.clear();
  first_id_ = next_id_;
  std::vector<Send> sends;
  for (const auto& [run, seats] : round.seats) {
    runs_.emplace(run, seats.size());
    Send send{run, Down()};
    for (const v1::Seat& seat : seats) *send.down.mutable_open()->add_seats() = seat;
    sends.push_back(std::move(send));
  }
  return sends;
}

absl::StatusOr<Board::Heard> Board::OnUp(RunId from, const v1::ElasticUp& up) {
  if (absl::Status status = Check(from, up); !status.ok()) return status;
  Heard heard;
  if (up.has_registered()) {  // of no round: the worker's address stays the same
    heard.event = Registered{from, up.registered().local_rank(), up.registered().not_understood()};
    return heard;
  }
  if (up.round() == 0) {  // its door was never opened
    if (runs_.count(from) == 0) heard.event = DoorWaits{from, up.waiting()};
    return heard;
  }
  if (up.round() != round_ || runs_.count(from) == 0) return heard;
  switch (up.kind_case()) {
    case v1::ElasticUp::kAsked:
      heard.event = SeatAsked{from, up.asked()};
      break;
    case v1::ElasticUp::kNoticed:
      heard.event = NoticeDone{from, up.noticed().timestamp(), up.noticed().failed()};
      break;
    case v1::ElasticUp::kPut:
      if ((put_bytes_[from] += up.put().ByteSizeLong()) > kMostPutBytes) {
        return absl::ResourceExhaustedError(
            absl::StrCat("its ranks put more than ", kMostPutBytes >> 20, " MiB in one round"));
      }
      for (const auto& [run, workers] : runs_) {
        if (run == from) continue;
        Send send{run, Down()};
        *send.down.mutable_put() = up.put();
        heard.sends.push_back(std::move(send));
      }
      break;
    case v1::ElasticUp::kRemoved:
      return Remove(from, up.removed());
    case v1::ElasticUp::kApplied:
      return Applied(from, up.applied());
    case v1::ElasticUp::kWaiting:  // survivors are known by what they have asked for
    case v1::ElasticUp::kRegistered:
    case v1::ElasticUp::KIND_NOT_SET:
      break;
  }
  return heard;
}

absl::Status Board::Check(RunId from, const v1::ElasticUp& up) const {
  if (up.kind_case() == v1::ElasticUp::KIND_NOT_SET) {
    return absl::InvalidArgumentError("a message about ranks without content");
  }
  if (up.round() > round_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message about round ", up.round(), ", of ", round_));
  }
  const bool is_of_no_round =
      up.kind_case() == v1::ElasticUp::kWaiting || up.kind_case() == v1::ElasticUp::kRegistered;
  if (up.round() == 0 && !is_of_no_round) {
    return absl::InvalidArgumentError("a message of ranks that have not been let in yet");
  }
  const auto run = runs_.find(from);
  if (run == runs_.end() || up.round() != round_) return absl::OkStatus();
  std::optional<uint32_t> local_rank;
  if (up.has_registered()) local_rank = up.registered().local_rank();
  if (up.has_noticed()) local_rank = up.noticed().local_rank();
  if (up.kind_case() == v1::ElasticUp::kAsked) local_rank = up.asked();
  if (local_rank && *local_rank >= run->second) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of local rank ", *local_rank, ", of ", run->second));
  }
  return absl::OkStatus();
}

absl::StatusOr<Board::Heard> Board::Remove(RunId from, const v1::ElasticRemoval& removal) {
  std::set<uint64_t>& asked = asked_[from];
  if (asked.size() >= kMostRemovals) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", kMostRemovals, " keys are being removed at once"));
  }
  if (!asked.insert(removal.id()).second) {
    return absl::InvalidArgumentError(absl::StrCat("removal ", removal.id(), " is not new"));
  }
  Heard heard;
  const uint64_t id = next_id_++;
  Removal& pending = removals_[id];
  pending.origin = from;
  pending.id = removal.id();
  for (const auto& [run, workers] : runs_) {
    if (run == from) continue;
    pending.waits_for.insert(run);
    Send send{run, Down()};
    *send.down.mutable_removed() = removal;
    send.down.mutable_removed()->set_id(id);
    heard.sends.push_back(std::move(send));
  }
  if (pending.waits_for.empty()) {
    heard.sends.push_back(Done(pending));
    asked.erase(removal.id());
    removals_.erase(id);
  }
  return heard;
}

absl::StatusOr<Board::Heard> Board::Applied(RunId from, uint64_t id) {
  if (id < first_id_ || id >= next_id_) {
    return absl::InvalidArgumentError(absl::StrCat("removal ", id, " does not exist"));
  }
  Heard heard;
  const auto removal = removals_.find(id);
  if (removal == removals_.end()) return heard;  // its origin was dropped
  if (removal->second.waits_for.erase(from) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("removal ", id, " is not to be applied"));
  }
  if (removal->second.waits_for.empty()) {
    heard.sends.push_back(Done(removal->second));
    asked_[removal->second.origin].erase(removal->second.id);
    removals_.erase(removal);
  }
  return heard;
}

std::vector<Board::Send> Board::Drop(RunId run) {
  std::vector<Send> sends;
  if (runs_.erase(run) == 0) return sends;
  asked_.erase(run);
  for (auto each = removals_.begin(); each != removals_.end();) {
    Removal& removal = each->second;
    removal.waits_for.erase(run);
    const bool is_own = removal.origin == run;
    const bool is_done = !is_own && removal.waits_for.empty();
    if (is_done) {
      sends.push_back(Done(removal));
      asked_[removal.origin].erase(removal.id);
    }
    each = is_own || is_done ? removals_.erase(each) : std::next(each);
  }
  return sends;
}

v1::ElasticDown Board::Down() const {
  v1::ElasticDown down;
  down.set_round(round_);
  return down;
}

Board::Send Board::Done(const Removal& removal) const {
  Send send{removal.origin, Down()};
  send.down.set_applied_everywhere(removal.id);
  return send;
}

}  // namespace dtrain::elastic
