// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/log_reading.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::status {

absl::StatusOr<LogReading::Step> LogReading::OnPiece(v1::LogPiece piece) {
  const uint64_t asked = request_.offset();
  if (piece.offset() < asked && !piece.data().empty()) {
    return absl::DataLossError(absl::StrCat("asked for output from byte ", asked,
                                            " on, the agent sent that from byte ", piece.offset(),
                                            " on"));
  }
  if (piece.data().size() > piece.size() || piece.offset() > piece.size() - piece.data().size()) {
    return absl::DataLossError("the agent sent more output than it says there is");
  }
  Step step;
  if (!begun_) until_ = piece.size();
  // What is gone before the first byte that is shown was never promised.
  if (begun_ && piece.offset() > asked) {
    step.text =
        absl::StrCat("[dtrain: ", piece.offset() - asked, " bytes are no longer available]\n");
  }
  begun_ = true;
  const uint64_t end = std::max(asked, piece.offset() + piece.data().size());
  step.text += piece.data();
  request_.set_offset(end);
  if (end < piece.size() && piece.data().empty()) {
    return absl::DataLossError(
        absl::StrCat("the agent has ", piece.size() - end, " more bytes of output, and sent none"));
  }
  if (follow_) {
    step.then = end < piece.size() ? Then::kAsk : piece.ended() ? Then::kEnd : Then::kPause;
  } else {
    step.then = end < std::min(until_, piece.size()) ? Then::kAsk : Then::kEnd;
  }
  return step;
}

}  // namespace dtrain::status
