// SPDX-License-Identifier: Apache-2.0
#include "common/link/frame_relay.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::link {
namespace {

// Of frames that are not kept, for a peer that is slow to take them: one of each kind.
constexpr size_t kMostUnkeptQueued = kKinds * (kHeaderBytes + kMostUnkept);

}  // namespace

FrameRelay::FrameRelay(Channel channel, const Caps& front, const Caps& back) : channel_(channel) {
  forth_.window = front.window;
  back_.window = back.window;
}

void FrameRelay::Attach() {
  Detach();
  ++asked_;
}

absl::StatusOr<bool> FrameRelay::OnAttached() {
  if (answered_ == asked_) return absl::DataLossError("it answered what was not asked");
  // An earlier one: that front end has gone, or another has taken its place.
  if (++answered_ < asked_) return false;
  attached_ = true;
  return true;
}

void FrameRelay::Detach() {
  attached_ = false;
  Drop(forth_);
  Drop(back_);
}

absl::Status FrameRelay::Pass(From from, Frame frame) {
  if (frame.header.channel != channel_) {
    return absl::DataLossError(absl::StrCat("a frame of channel ",
                                            static_cast<int>(frame.header.channel),
                                            " came for channel ", static_cast<int>(channel_)));
  }
  if (!attached_) {
    // It goes on with a front end that it has not seen go.
    if (from == From::kBack) return absl::OkStatus();
    return absl::DataLossError("a frame came before the link was opened");
  }
  Line& line = LineFrom(from);
  const size_t bytes = frame.wire_size();
  Queue& queue = frame.header.keep ? line.kept : line.unkept;
  if (frame.header.keep) {
    // As the other end would find, only that it might never get to see it.
    if (queue.bytes + bytes > line.window + kHeaderBytes + kMostPayload ||
        queue.frames.size() >= kMostUnacked) {
      return absl::DataLossError(absl::StrCat("more than ", line.window, " bytes or ", kMostUnacked,
                                              " frames came that were not acknowledged"));
    }
  } else {
    if (frame.payload.size() > kMostUnkept) {
      return absl::DataLossError(
          absl::StrCat("a frame that is not kept has ", frame.payload.size(), " bytes"));
    }
    // A bare acknowledgement makes the one before it needless.
    if (frame.payload.size() == 0 && !queue.frames.empty() &&
        queue.frames.back().place + 1 == line.end &&
        queue.frames.back().frame.payload.size() == 0) {
      queue.frames.back().frame = std::move(frame);
      return absl::OkStatus();
    }
  }
  queue.bytes += bytes;
  queue.frames.push_back({line.end++, std::move(frame)});
  // Newer ones are behind the oldest, with newer acknowledgements.
  while (line.unkept.bytes > kMostUnkeptQueued) (void)line.unkept.Pop();
  return absl::OkStatus();
}

std::optional<Frame> FrameRelay::NextTo(From end) {
  Line& line = end == From::kFront ? back_ : forth_;
  const auto place = [](const Queue& queue) {
    return queue.frames.empty() ? std::numeric_limits<uint64_t>::max() : queue.frames.front().place;
  };
  if (!attached_ || line.bytes() == 0) return std::nullopt;
  return (place(line.kept) < place(line.unkept) ? line.kept : line.unkept).Pop();
}

Frame FrameRelay::Queue::Pop() {
  Frame frame = std::move(frames.front().frame);
  frames.pop_front();
  bytes -= frame.wire_size();
  return frame;
}

void FrameRelay::Drop(Line& line) { line.kept = line.unkept = {}; }

}  // namespace dtrain::link
