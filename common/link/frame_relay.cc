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

FrameRelay::FrameRelay(const Caps& front, const Caps& back) : forth_(front), back_(back) {}

absl::Status FrameRelay::Attach(const RelayedParty& front) {
  if (absl::Status known = Know(back_, front); !known.ok()) return known;
  Detach();
  ++asked_;
  return absl::OkStatus();
}

absl::StatusOr<bool> FrameRelay::OnAttached(const RelayedParty& back) {
  if (answered_ == asked_) return absl::DataLossError("it answered what was not asked");
  if (absl::Status known = Know(forth_, back); !known.ok()) return known;
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

// The other end goes on behind what `taker` has. All of that came through here, but for what did
// before our time.
absl::Status FrameRelay::Know(Line& line, const RelayedParty& taker) {
  const uint64_t received = taker.party.received;
  if (!line.known) {
    line.known = true;
    line.last = received;
    line.skips = taker.within_message;
  } else if (received > line.last) {
    return absl::DataLossError(
        absl::StrCat("it claims to have ", received, " frames where ", line.last, " were sent"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<SharedBytes>> FrameRelay::Read(From from, const Frame& frame) {
  Line& line = LineFrom(from);
  if (!line.known) return absl::DataLossError("a frame came before it was asked for");
  if (!frame.header.keep) {
    if (frame.payload.size() > kMostUnkept) {
      return absl::DataLossError(
          absl::StrCat("a frame that is not kept has ", frame.payload.size(), " bytes"));
    }
    if (frame.payload.size() == 0) return std::nullopt;
    return frame.payload;
  }
  const uint64_t sequence = frame.header.sequence;
  if (sequence <= line.last) return std::nullopt;  // sent again
  if (sequence != line.last + 1) {
    return absl::DataLossError(
        absl::StrCat("frame ", sequence, " came where ", line.last + 1, " was next"));
  }
  line.last = sequence;
  if (line.skips) {
    line.skips = frame.header.more;
    return std::nullopt;
  }
  return line.message.Take(frame.payload, frame.header.more);
}

absl::Status FrameRelay::Pass(From from, Frame frame) {
  if (!attached_) {
    // It goes on with a front end that it has not seen go.
    if (from == From::kBack) return absl::OkStatus();
    return absl::DataLossError("a frame came before the link was opened");
  }
  Line& line = LineFrom(from);
  const size_t bytes = frame.wire_size();
  if (frame.header.keep) {
    // As the other end would find, only that it might never get to see it.
    if (line.bytes - line.unkept + bytes > line.caps.window + kHeaderBytes + kMostPayload) {
      return absl::DataLossError(
          absl::StrCat("more than ", line.caps.window, " bytes came that were not acknowledged"));
    }
  } else {
    // Nor does a bare acknowledgement need the one before it.
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
