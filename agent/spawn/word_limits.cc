// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/word_limits.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"

namespace dtrain::spawn {
namespace {

constexpr Duration kLinesPeriod = std::chrono::seconds(1);

}  // namespace

std::vector<std::string> WordLimits::Take(TimePoint now, absl::string_view bytes) {
  std::vector<std::string> out;
  while (!bytes.empty()) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    // One byte more than a line shows that it was cut.
    absl::StrAppend(&begun_, bytes.substr(0, std::min(end, kMostOfLine + 1 - begun_.size())));
    is_begun_ = true;
    if (end == bytes.size()) break;
    Line(now, &out);
    bytes.remove_prefix(end + 1);
  }
  return out;
}

std::vector<std::string> WordLimits::End(TimePoint now) {
  std::vector<std::string> out;
  if (is_begun_) Line(now, &out);
  if (omitted_ > 0) TellOmitted(&out);
  return out;
}

void WordLimits::Line(TimePoint now, std::vector<std::string>* out) {
  const std::string raw = std::exchange(begun_, "");
  is_begun_ = false;
  if (raw.empty()) return;
  if (now - since_ >= kLinesPeriod) {
    since_ = now;
    lines_ = 0;
  }
  // Escaped it may be four times as long.
  std::string line = Escape(raw, kMostOfLine);
  if (line.size() > kMostOfLine) line.resize(kMostOfLine);
  if (lines_ >= kMostLines || bytes_ + line.size() > kMostBytes) {
    ++omitted_;
    return;
  }
  if (omitted_ > 0) TellOmitted(out);
  ++lines_;
  bytes_ += line.size();
  out->push_back(std::move(line));
}

void WordLimits::TellOmitted(std::vector<std::string>* out) {
  out->push_back(absl::StrCat("(", std::exchange(omitted_, 0), " lines more)"));
}

}  // namespace dtrain::spawn
