// SPDX-License-Identifier: Apache-2.0
#include "launcher/status/log_frames.h"

#include <vector>

#include "absl/strings/numbers.h"
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

}  // namespace dtrain::status
