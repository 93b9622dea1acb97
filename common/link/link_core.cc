// SPDX-License-Identifier: Apache-2.0
#include "common/link/link_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace dtrain::link {

LinkCore::LinkCore(const Options& options) : options_(options), assembler_(options.in.message) {
  DTRAIN_CHECK(options.epoch != 0);
  DTRAIN_CHECK(options.out.piece > 0 && options.out.piece <= kMostPayload);
}

size_t LinkCore::room() const {
  if (state_ == State::kLost || state_ == State::kFull) return 0;
  const size_t ours = options_.out.kept - kept_bytes_;
  const size_t all =
      options_.budget != nullptr ? options_.budget->most() - options_.budget->bytes() : ours;
  const size_t least = std::min(ours, all);
  return least > kKeepingOverhead ? least - kKeepingOverhead : 0;
}

absl::Status LinkCore::Send(SharedBytes message) {
  if (state_ == State::kLost || state_ == State::kFull) {
    return absl::FailedPreconditionError(why_.message());
  }
  if (message.size() > options_.out.message) {
    return absl::InvalidArgumentError(absl::StrCat("a message has ", message.size(), " bytes; ",
                                                   options_.out.message, " can be sent at most"));
  }
  if (KeptSize(message) > options_.out.kept - kept_bytes_) {
    return Lose(State::kFull,
                absl::ResourceExhaustedError(absl::StrCat(
                    "it takes nothing any more: ", kept_.size(), " messages of ", kept_bytes_,
                    " bytes are not acknowledged, and no more are kept for it")));
  }
  if (options_.budget != nullptr && !options_.budget->Add(message)) {
    return absl::UnavailableError(
        absl::StrCat("no more than ", options_.budget->most(), " bytes are kept for all peers"));
  }
  kept_bytes_ += KeptSize(message);
  const uint64_t first = last_ + 1;
  last_ += PieceCount(message.size(), options_.out.piece);
  kept_.push_back({first, last_, std::move(message)});
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SharedBytes>> LinkCore::SendUnkept(size_t kind, SharedBytes message) {
  DTRAIN_CHECK(kind < kKinds);
  if (state_ == State::kLost || state_ == State::kFull) {
    return absl::FailedPreconditionError(why_.message());
  }
  if (message.size() == 0 || message.size() > kMostUnkept) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a message that is not kept has ", message.size(), " bytes; it needs 1 to ", kMostUnkept));
  }
  Slot& slot = slots_[kind];
  if (!slot.message) slot.since = ++slots_filled_;
  return std::exchange(slot.message, std::move(message));
}

// Unkept frames go first, but not for ever: after as many as there are kinds a kept one is next.
std::optional<Frame> LinkCore::Next(TimePoint now) {
  if (state_ != State::kUp) return std::nullopt;
  Slot* slot = OldestSlot();
  if (slot != nullptr && (unkept_run_ < kKinds || !MayGiveKept())) {
    ++unkept_run_;
    return Give(now, Frame{{}, *std::exchange(slot->message, std::nullopt)});
  }
  if (MayGiveKept()) return GiveKept(now);
  if (now >= NextDeadline()) return Give(now, Frame());
  return std::nullopt;
}

LinkCore::Slot* LinkCore::OldestSlot() {
  Slot* oldest = nullptr;
  for (Slot& slot : slots_) {
    if (slot.message && (oldest == nullptr || slot.since < oldest->since)) oldest = &slot;
  }
  return oldest;
}

Frame LinkCore::GiveKept(TimePoint now) {
  unkept_run_ = 0;
  const uint64_t sequence = ++given_;
  const Kept& kept = Holder(sequence);
  Frame frame{{}, Piece(kept, sequence)};
  frame.header.keep = true;
  frame.header.more = sequence < kept.last;
  frame.header.sequence = sequence;
  unacked_ += frame.wire_size();
  return Give(now, std::move(frame));
}

Frame LinkCore::Give(TimePoint now, Frame frame) {
  frame.header.size = static_cast<uint32_t>(frame.payload.size());
  frame.header.channel = options_.channel;
  frame.header.ack = received_;
  given_at_ = now;
  owed_frames_ = 0;
  owed_bytes_ = 0;
  ack_at_ = kNever;
  return frame;
}

const LinkCore::Kept& LinkCore::Holder(uint64_t sequence) const {
  return *std::lower_bound(kept_.begin(), kept_.end(), sequence,
                           [](const Kept& kept, uint64_t s) { return kept.last < s; });
}

SharedBytes LinkCore::Piece(const Kept& kept, uint64_t sequence) const {
  return PieceOf(kept.message, sequence - kept.first, options_.out.piece);
}

TimePoint LinkCore::NextDeadline() const {
  if (state_ != State::kUp) return kNever;
  const bool beats = options_.beat < kNever - given_at_;
  return beats ? std::min(ack_at_, given_at_ + options_.beat) : ack_at_;
}

absl::StatusOr<std::optional<SharedBytes>> LinkCore::OnFrame(TimePoint now, const Frame& frame) {
  if (state_ == State::kFull || state_ == State::kLost) {
    return absl::DataLossError(why_.message());
  }
  const auto broken = [this](auto... what) {
    return Lose(State::kLost, absl::DataLossError(absl::StrCat(what...)));
  };
  const Header& header = frame.header;
  if (state_ != State::kUp) return broken("a frame came before the link was opened");
  if (header.channel != options_.channel) {
    return broken("a frame of channel ", static_cast<int>(header.channel), " on channel ",
                  static_cast<int>(options_.channel));
  }
  if (header.ack < acked_ || header.ack > given_) {
    return broken("frame ", header.ack, " was acknowledged where ", acked_, " to ", given_,
                  " could be");
  }
  heard_ = now;
  Acknowledge(header.ack);
  if (!header.keep) {
    if (frame.payload.size() == 0) return std::nullopt;
    if (frame.payload.size() <= kMostUnkept) return frame.payload;
    return broken("a frame that is not kept has ", frame.payload.size(), " bytes");
  }
  if (absl::Status fits = CheckKept(frame); !fits.ok()) return Lose(State::kLost, std::move(fits));
  Owe(now, frame);
  if (owed_bytes_ > options_.in.window + kHeaderBytes + kMostPayload) {
    return broken(owed_bytes_, " bytes came that were not acknowledged; ", options_.in.window,
                  " may");
  }
  next_on_wire_ = header.sequence + 1;
  if (header.sequence <= received_) return std::nullopt;  // seen
  received_ = header.sequence;
  absl::StatusOr<std::optional<SharedBytes>> message = assembler_.Take(frame.payload, header.more);
  if (!message.ok()) return Lose(State::kLost, message.status());
  return message;
}

// A new connection may begin with messages seen before; after that, gaps and repetitions are
// errors.
absl::Status LinkCore::CheckKept(const Frame& frame) const {
  const uint64_t sequence = frame.header.sequence;
  const bool follows = next_on_wire_ == 0 ? sequence - 1 <= received_ : sequence == next_on_wire_;
  if (follows) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("frame ", sequence, " came where ",
                                          next_on_wire_ == 0 ? received_ + 1 : next_on_wire_,
                                          " was next"));
}

void LinkCore::Owe(TimePoint now, const Frame& frame) {
  ++owed_frames_;
  owed_bytes_ += frame.wire_size();
  if (ack_at_ == kNever) ack_at_ = now + kAckDelay;
  if (owed_frames_ >= kAckFrames || owed_bytes_ >= kAckBytes) ack_at_ = std::min(ack_at_, now);
}

void LinkCore::Acknowledge(uint64_t through) {
  while (acked_ < through) {
    const Kept& front = kept_.front();
    unacked_ -= kHeaderBytes + Piece(front, ++acked_).size();
    if (acked_ < front.last) continue;
    kept_bytes_ -= KeptSize(front.message);
    if (options_.budget != nullptr) options_.budget->Remove(front.message);
    kept_.pop_front();
  }
}

absl::Status LinkCore::Open(TimePoint now, const Party& peer) {
  switch (state_) {
    case State::kLost:
    case State::kFull:
      return absl::FailedPreconditionError(why_.message());
    case State::kUp:
      return Lose(State::kLost, absl::DataLossError("the link was opened twice"));
    case State::kIdle:
    case State::kDown:
      break;
  }
  if (peer.epoch == 0) return Lose(State::kLost, absl::DataLossError("the peer has no epoch"));
  const bool knows_us = peer.of == options_.epoch;
  const bool knows_another = peer.of != 0 && !knows_us;
  // One that we know, and that has not heard of us yet, may still know who was here before.
  const bool met = acked_ > 0 || received_ > 0;
  const bool is_another = peer_epoch_ != 0 && (peer.epoch != peer_epoch_ || (knows_another && met));
  if (is_another && options_.forgets) {
    LetGo();
    state_ = State::kIdle;
    return absl::AbortedError("the peer is another than before");
  }
  if (is_another || (knows_another && !options_.forgets)) {
    return Lose(State::kLost, absl::DataLossError("the peer is another than before"));
  }
  const uint64_t taken = knows_us ? peer.received : 0;
  if (taken < acked_ || taken > given_ || (peer.of == 0 && peer.received != 0)) {
    return Lose(State::kLost, absl::DataLossError(absl::StrCat(
                                  "the peer claims to have ", peer.received, " frames where ",
                                  acked_, " to ", given_, " could be")));
  }
  Acknowledge(taken);
  given_ = acked_;
  unacked_ = 0;
  peer_epoch_ = peer.epoch;
  next_on_wire_ = 0;
  owed_frames_ = 0;
  owed_bytes_ = 0;
  ack_at_ = kNever;  // Owed has told the peer
  unkept_run_ = 0;
  given_at_ = now;
  heard_ = now;
  state_ = State::kUp;
  return absl::OkStatus();
}

void LinkCore::Close() {
  if (state_ == State::kUp) state_ = State::kDown;
}

Party LinkCore::Owed() const {
  DTRAIN_CHECK(state_ != State::kUp);
  return {options_.epoch, peer_epoch_, received_};
}

absl::Status LinkCore::Lose(State state, absl::Status why) {
  LetGo();
  state_ = state;
  why_ = std::move(why);
  return why_;
}

void LinkCore::LetGo() {
  if (options_.budget != nullptr) {
    for (const Kept& kept : kept_) options_.budget->Remove(kept.message);
  }
  kept_.clear();
  kept_bytes_ = 0;
  unacked_ = 0;
  last_ = given_ = acked_ = received_ = next_on_wire_ = 0;
  peer_epoch_ = 0;
  slots_ = {};
  assembler_.Clear();
}

}  // namespace dtrain::link
