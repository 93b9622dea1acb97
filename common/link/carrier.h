// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "common/link/frame.h"

namespace dtrain::link {

// What a carrier of frames asks its owner, on the loop. A carrier is one connection; it knows no
// channels, and queues as little as it can: it asks when it can take a frame, and when it is
// pumped.
struct CarrierHandlers {
  absl::AnyInvocable<std::optional<Frame>()> next;  // as LinkCore::Next, of all channels
  absl::AnyInvocable<void(Frame)> on_frame;
  // Once, and nothing after it. DATA_LOSS: the peer broke a rule.
  absl::AnyInvocable<void(absl::Status)> on_closed;
};

}  // namespace dtrain::link
