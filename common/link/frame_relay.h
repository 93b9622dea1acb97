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

namespace dtrain::link {

// Of the relay's memory for each frame, beside its bytes.
inline constexpr size_t kRelayOverhead = 150;

// One channel, in the process between its ends: an agent's, between launcher and shepherd. Passes
// frames on as they are, by their header alone. It reads, numbers, keeps and acknowledges nothing:
// those are the ends' affairs, and it may be gone at any moment. Pure.
//
// The front end's connections come and go; the back end's is as old as this. When a front end
// comes, Attach is called and what it says of itself sent to the back end, which answers with the
// same: OnAttached. The front end may then be told. What the two have sent each other before, on
// another connection of the front end, is not passed on.
class FrameRelay {
 public:
  enum class From { kFront, kBack };

  // Of what each end may send.
  FrameRelay(Channel channel, const Caps& front, const Caps& back);

  // A front end has come, perhaps before the one before it was seen to go.
  void Attach();
  // The back end has answered one Attach. True: the last one, and from now on frames pass.
  // DATA_LOSS: it was not asked.
  absl::StatusOr<bool> OnAttached();
  // The front end is gone. The back end need not know.
  void Detach();
  bool attached() const { return attached_; }

  // Each frame. What the back end says to nobody is dropped. DATA_LOSS: it is of another channel,
  // the front end sends it before it is attached, or an end has sent more than the window.
  absl::Status Pass(From from, Frame frame);
  // The next frame for that end. Not before the front end has heard of OnAttached.
  std::optional<Frame> NextTo(From end);
  size_t queued_bytes(From to) const { return LineTo(to).bytes(); }
  // What the queued frames take, roughly.
  size_t memory(From to) const {
    const Line& line = LineTo(to);
    return line.bytes() + line.frames() * kRelayOverhead;
  }

 private:
  struct Queued {
    uint64_t place;  // among those of both queues
    Frame frame;
  };
  struct Queue {
    std::deque<Queued> frames;
    size_t bytes = 0;
    Frame Pop();
  };
  // One direction.
  struct Line {
    size_t window = 0;
    uint64_t end = 0;  // the next place
    Queue kept, unkept;
    size_t bytes() const { return kept.bytes + unkept.bytes; }
    size_t frames() const { return kept.frames.size() + unkept.frames.size(); }
  };

  Line& LineFrom(From from) { return from == From::kFront ? forth_ : back_; }
  const Line& LineTo(From to) const { return to == From::kFront ? back_ : forth_; }
  static void Drop(Line& line);

  const Channel channel_;
  Line forth_;  // from the front end
  Line back_;
  uint64_t asked_ = 0;  // Attach
  uint64_t answered_ = 0;
  bool attached_ = false;
};

}  // namespace dtrain::link
