// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/link/frame.h"
#include "common/link/kept_bytes.h"
#include "common/link/shared_bytes.h"

namespace dtrain::link {

// Of what one side sends on one channel. Both sides must have the same.
struct Caps {
  size_t message = 0;  // all pieces of one
  size_t window = 0;   // on their way and not acknowledged, with their headers
  size_t kept = 0;     // not acknowledged, sent or not, with kKeepingOverhead each
  size_t piece = kPieceBytes;
};
inline constexpr Caps kToShepherd{32 << 20, 4 << 20, 64 << 20};
inline constexpr Caps kToLauncher{4 << 20, 4 << 20, 64 << 20};
inline constexpr Caps kOfAgent{256 << 10, 256 << 10, 1 << 20};  // channel 0, each way
// Frames on their way and not acknowledged: each takes kRelayOverhead of a relay's memory beside
// its own.
inline constexpr uint64_t kMostUnacked = 32 << 10;
inline constexpr size_t kKeptPerLaunch = 256 << 20;  // of a launcher's KeptBytes

// An ack is owed for so long at most, and for so much.
inline constexpr Duration kAckDelay = std::chrono::seconds(1);
inline constexpr uint64_t kAckFrames = 64;
inline constexpr uint64_t kAckBytes = 256 << 10;

// Frames that are not kept have one of so many kinds, and a size that lets others pass.
inline constexpr size_t kKinds = 4;
inline constexpr size_t kMostUnkept = 64 << 10;

// What each end says of itself to the other before a link goes on, by whatever means the owner has.
struct Party {
  uint64_t epoch = 0;     // 8 random bytes, not 0, for the life of what may forget the link
  uint64_t of = 0;        // the other's epoch that `received` counts in; 0: it knows none yet
  uint64_t received = 0;  // the last sequence taken from the other
};

// One channel of a conversation that outlives its connections, at one end: numbers what must arrive
// once, keeps it until it is acknowledged, sends it again after a new connection. The only place
// that does. Pure.
//
//   state    Send      Next                  OnFrame         Open                       Close
//   kIdle    keeps     nothing               broken → kLost  → kUp                      -
//   kUp      keeps     unkept frames; kept   delivers, owes  broken → kLost             → kDown
//                      ones in the window;   an ack
//                      ack or beat when due
//   kDown    keeps     nothing               broken → kLost  the same peer → kUp; its   -
//                                                            successor → kIdle or kLost
//   kLost    refuses   nothing               broken          refuses                    -
//   kFull    refuses   nothing               broken          refuses                    -
//
// kLost and kFull are final: what was kept is let go, and why() tells what happened. What follows
// from them is the owner's to decide.
class LinkCore {
 public:
  enum class State { kIdle, kUp, kDown, kLost, kFull };
  struct Options {
    Channel channel = Channel::kJob;
    uint64_t epoch = 0;  // ours
    Caps out;
    Caps in;
    // When another takes the peer's place: forget all and begin again, or be lost.
    bool forgets = false;
    Duration beat = Duration::max();  // nothing is sent for so long at most
    KeptBytes* budget = nullptr;      // shared with others; null: none
  };

  explicit LinkCore(const Options& options);
  ~LinkCore() { LetGo(); }
  LinkCore(const LinkCore&) = delete;
  LinkCore& operator=(const LinkCore&) = delete;

  // Keeps it until it has arrived. INVALID_ARGUMENT: it is longer than the peer takes; nothing has
  // changed. UNAVAILABLE: there is no room in the budget; nothing has changed. RESOURCE_EXHAUSTED:
  // kFull from now on. FAILED_PRECONDITION: kFull or kLost.
  [[nodiscard]] absl::Status Send(SharedBytes message);
  // A state, of which the newest counts: sent before all that is kept, and at most once. While
  // another of its kind has not been sent, this one takes its place, which is returned: what must
  // not be lost of that is sent again with the new one, or counted. INVALID_ARGUMENT: it has more
  // than kMostUnkept or has no bytes. FAILED_PRECONDITION: kFull or kLost.
  absl::StatusOr<std::optional<SharedBytes>> SendUnkept(size_t kind, SharedBytes message);
  // It does not count any more, if it has not been sent yet.
  void Withdraw(size_t kind) { slots_[kind].message.reset(); }
  // Whether one of that kind has not been sent yet.
  bool waits(size_t kind) const { return slots_[kind].message.has_value(); }
  // How much more can be kept. A caller that relays input stops reading before this reaches 0.
  size_t room() const;

  // What is to be written next, if anything; asked again after each frame, Send, OnFrame and Open,
  // and at NextDeadline. To be asked only when the connection can take it.
  std::optional<Frame> Next(TimePoint now);
  TimePoint NextDeadline() const;

  // A message for the owner, if this frame completes one. DATA_LOSS: the peer has broken a rule, or
  // no connection is open; kLost from now on.
  absl::StatusOr<std::optional<SharedBytes>> OnFrame(TimePoint now, const Frame& frame);

  // There is a connection, and at its other end `peer`. ABORTED: that is another than before, all
  // is forgotten, and Open may be called again once what it must know is in Send. DATA_LOSS,
  // FAILED_PRECONDITION: kLost, kFull.
  absl::Status Open(TimePoint now, const Party& peer);
  // The connection is gone. Do not pass anything else read from it to OnFrame.
  void Close();
  // For the peer's Open. Between Close and Open only: before, frames may be on their way.
  Party Owed() const;

  State state() const { return state_; }
  const absl::Status& why() const { return why_; }  // of kLost and kFull
  TimePoint last_heard() const { return heard_; }   // of the peer, by whatever frame
  size_t kept_bytes() const { return kept_bytes_; }
  size_t unacked_bytes() const { return unacked_; }
  uint64_t last() const { return last_; }          // sequence that a message was given
  uint64_t given() const { return given_; }        // … that Next has returned
  uint64_t acked() const { return acked_; }        // … that the peer has taken, as far as we know
  uint64_t received() const { return received_; }  // … of the peer's, that we have taken

 private:
  struct Kept {
    uint64_t first = 0;  // sequences of its pieces
    uint64_t last = 0;
    SharedBytes message;
  };
  struct Slot {
    std::optional<SharedBytes> message;
    uint64_t since = 0;
  };

  static size_t KeptSize(const SharedBytes& message) { return kKeepingOverhead + message.size(); }
  SharedBytes Piece(const Kept& kept, uint64_t sequence) const;
  const Kept& Holder(uint64_t sequence) const;
  Slot* OldestSlot();
  bool MayGiveKept() const {
    return given_ < last_ && given_ - acked_ < kMostUnacked && unacked_ < options_.out.window;
  }
  Frame Give(TimePoint now, Frame frame);
  Frame GiveKept(TimePoint now);
  void Acknowledge(uint64_t through);
  void Owe(TimePoint now, const Frame& frame);
  absl::Status CheckKept(const Frame& frame) const;
  absl::Status Begin(TimePoint now, const Party& peer);
  absl::Status Lose(State state, absl::Status why);
  void LetGo();

  const Options options_;
  State state_ = State::kIdle;
  absl::Status why_;
  TimePoint heard_{};
  uint64_t peer_epoch_ = 0;  // 0: never open
  // What we send: acked_ <= given_ <= last_.
  std::deque<Kept> kept_;
  size_t kept_bytes_ = 0;
  size_t unacked_ = 0;  // on the wire, of acked_ + 1 to given_
  uint64_t last_ = 0;
  uint64_t given_ = 0;
  uint64_t acked_ = 0;
  std::array<Slot, kKinds> slots_;
  uint64_t slots_filled_ = 0;
  size_t unkept_run_ = 0;  // given since a kept one was
  TimePoint given_at_{};
  // What we take.
  uint64_t received_ = 0;
  uint64_t next_on_wire_ = 0;  // 0: nothing kept has come on this connection
  Assembler assembler_;
  uint64_t owed_frames_ = 0;
  uint64_t owed_bytes_ = 0;
  TimePoint ack_at_ = kNever;
};

}  // namespace dtrain::link
