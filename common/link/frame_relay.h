// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/link/frame.h"
#include "common/link/link_core.h"
#include "common/link/shared_bytes.h"

namespace dtrain::link {

// An end of a channel, as the one between tells the other: where its next frame stands, too.
struct RelayedParty {
  Party party;
  bool within_message = false;  // the next frame that it takes continues one
};

// One channel, in the process between its ends: an agent's, between launcher and shepherd. Passes
// frames on as they are, and reads along. It numbers, keeps and acknowledges nothing: those are the
// ends' affairs, and it may be gone at any moment. Pure.
//
// The front end's connections come and go; the back end's is as old as this. When a front end
// comes, Attach is called and its party sent to the back end, which answers with its own:
// OnAttached. The front end may then be told. What the two have sent each other before, on another
// connection of the front end, is read, and not passed on.
class FrameRelay {
 public:
  enum class From { kFront, kBack };

  // Of what each end may send.
  FrameRelay(const Caps& front, const Caps& back);

  // A front end has come, perhaps before the one before it was seen to go. DATA_LOSS: it claims
  // what nobody has sent.
  absl::Status Attach(const RelayedParty& front);
  // The back end has answered one Attach. True: the last one, and from now on frames pass.
  // DATA_LOSS: it was not asked, or claims what nobody has sent.
  absl::StatusOr<bool> OnAttached(const RelayedParty& back);
  // The front end is gone. The back end need not know.
  void Detach();
  bool attached() const { return attached_; }

  // Each frame, before Pass: the message that it completes, for the reader, once. One that began
  // before our time is left out. DATA_LOSS: a gap, or too long a message.
  absl::StatusOr<std::optional<SharedBytes>> Read(From from, const Frame& frame);
  // … and on it goes, if it may. DATA_LOSS: an end that is not attached has sent it, or more than
  // the window.
  absl::Status Pass(From from, Frame frame);
  // The next frame for that end. Not before the front end has heard of OnAttached.
  std::optional<Frame> NextTo(From end);
  size_t queued_bytes(From to) const { return LineTo(to).bytes; }
  // Of a message that is not whole yet.
  size_t unfinished_bytes(From from) const { return LineTo(Other(from)).message.bytes(); }

 private:
  // One direction.
  struct Line {
    explicit Line(const Caps& c) : caps(c), message(c.message) {}
    const Caps caps;
    // What was read: all up to `last`.
    bool known = false;
    bool skips = false;  // the rest of a message whose beginning nobody here has seen
    uint64_t last = 0;
    Assembler message;
    // What waits.
    std::deque<Frame> queue;
    size_t bytes = 0;   // of all of it
    size_t unkept = 0;  // of what is not kept, for which newer ones come
  };

  static From Other(From end) { return end == From::kFront ? From::kBack : From::kFront; }
  Line& LineFrom(From from) { return from == From::kFront ? forth_ : back_; }
  const Line& LineTo(From to) const { return to == From::kFront ? back_ : forth_; }
  static absl::Status Know(Line& line, const RelayedParty& taker);
  static void Drop(Line& line);
  static void DropOldestUnkept(Line& line);

  Line forth_;  // from the front end
  Line back_;
  uint64_t asked_ = 0;  // Attach
  uint64_t answered_ = 0;
  bool attached_ = false;
};

}  // namespace dtrain::link
