// SPDX-License-Identifier: Apache-2.0
#include "common/link/frame_relay.h"

#include <algorithm>
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
  if (frame.header.keep) {
    // As the other end would find, only that it might never get to see it.
    if (line.bytes - line.unkept + bytes > line.window + kHeaderBytes + kMostPayload) {
      return absl::DataLossError(
          absl::StrCat("more than ", line.window, " bytes came that were not acknowledged"));
    }
  } else {
    if (frame.payload.size() > kMostUnkept) {
      return absl::DataLossError(
          absl::StrCat("a frame that is not kept has ", frame.payload.size(), " bytes"));
    }
    // A bare acknowledgement makes the one before it needless.
    if (frame.payload.size() == 0 && !line.queue.empty() && !line.queue.back().header.keep &&
        line.queue.back().payload.size() == 0) {
      line.queue.back() = std::move(frame);
      return absl::OkStatus();
    }
    line.unkept += bytes;
  }
  line.bytes += bytes;
  line.queue.push_back(std::move(frame));
  while (line.unkept > kMostUnkeptQueued) DropOldestUnkept(line);
  return absl::OkStatus();
}

std::optional<Frame> FrameRelay::NextTo(From end) {
  Line& line = end == From::kFront ? back_ : forth_;
  if (!attached_ || line.queue.empty()) return std::nullopt;
  Frame frame = std::move(line.queue.front());
  line.queue.pop_front();
  line.bytes -= frame.wire_size();
  if (!frame.header.keep) line.unkept -= frame.wire_size();
  return frame;
}

void FrameRelay::Drop(Line& line) {
  line.queue.clear();
  line.bytes = line.unkept = 0;
}

// Newer ones are behind it, with newer acknowledgements.
void FrameRelay::DropOldestUnkept(Line& line) {
  const auto oldest = std::find_if(line.queue.begin(), line.queue.end(),
                                   [](const Frame& frame) { return !frame.header.keep; });
  line.bytes -= oldest->wire_size();
  line.unkept -= oldest->wire_size();
  line.queue.erase(oldest);
}

}  // namespace dtrain::link
