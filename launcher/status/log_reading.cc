// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/log_reading.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace dtrain::status {
namespace {

constexpr size_t kMostHeader = 100;

}  // namespace

bool LogFrames::Add(absl::string_view piece, absl::FunctionRef<bool(const Frame&)> on_frame) {
  rest_.append(piece.data(), piece.size());
  size_t at = 0;
  for (;;) {
    const absl::string_view rest = absl::string_view(rest_).substr(at);
    const size_t end = rest.find('\n');
    if (end == rest.npos) {
      rest_.erase(0, at);
      return rest_.size() <= kMostHeader;
    }
    const std::vector<absl::string_view> words = absl::StrSplit(rest.substr(0, end), ' ');
    uint32_t rank = 0;
    Frame frame;
    uint64_t size = 0;
    if (words.size() != 4 || !absl::SimpleAtoi(words[0], &rank) ||
        !absl::SimpleAtoi(words[2], &frame.unix_nanos) || !absl::SimpleAtoi(words[3], &size)) {
      return false;
    }
    if (rest.size() - end - 1 < size) {
      rest_.erase(0, at);
      return true;
    }
    frame.stream = {Rank(rank), words[1] == "stderr"};
    frame.bytes = rest.substr(end + 1, size);
    if (!on_frame(frame)) return false;
    at += end + 1 + size;
  }
}

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
