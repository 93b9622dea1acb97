// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/traceback_fold.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "launcher/output/likeness.h"

namespace dtrain::output {
namespace {

using std::chrono::milliseconds;

constexpr absl::string_view kStart = "Traceback (most recent call last):";
// What Python writes between the tracebacks of a chain.
constexpr absl::string_view kChains[] = {
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:"};

// A whole one may be followed by the rest of its message for so long.
constexpr milliseconds kQuiet(200);
// Python writes one within milliseconds; one that is not finished after this is shown as it is.
constexpr milliseconds kLongest(2000);
// Ranks that fail of one cause do so within a short time. Later it is shown again.
constexpr std::chrono::seconds kWindow(30);
// Until the ranks that wrote the same are told, so that most are in one line.
constexpr milliseconds kSummary(500);
constexpr size_t kMostLines = 500;
constexpr size_t kMostBytes = 64 << 10;
constexpr size_t kMostHeld = 4 << 20;  // of all ranks; beyond it nothing is held back
constexpr size_t kMostSeen = 64;

// Without what a progress bar leaves before and behind it, and the rank with which PyTorch begins
// the lines of a traceback.
absl::string_view BareLine(Rank rank, absl::string_view line) {
  const absl::string_view text = absl::StripTrailingAsciiWhitespace(line);
  line.remove_prefix(text.rfind('\r') + 1);  // npos + 1 is 0
  if (absl::StartsWith(line, "[")) {
    absl::ConsumePrefix(&line, absl::StrCat("[rank", rank.value(), "]: "));
  }
  return absl::StripTrailingAsciiWhitespace(line);
}

std::string Text(Rank rank, const std::vector<std::string>& lines, size_t from, size_t to) {
  std::string out;
  for (size_t i = from; i < to; ++i) absl::StrAppend(&out, BareLine(rank, lines[i]), "\n");
  return out;
}

}  // namespace

TimePoint TracebackFold::Block::until() const {
  return inside ? began + kLongest : std::min(began + kLongest, last + kQuiet);
}

bool TracebackFold::Wants(Rank rank, absl::string_view line) const {
  if (!open_.empty() && open_.contains(rank.value())) return true;
  return absl::EndsWith(absl::StripTrailingAsciiWhitespace(line), kStart) &&
         BareLine(rank, line) == kStart && held_ < kMostHeld;
}

TracebackFold::Lines TracebackFold::Add(Rank rank, absl::string_view line, TimePoint now) {
  Lines out;
  if (!Wants(rank, line)) {
    out.push_back({rank, std::string(line)});
    return out;
  }
  auto [place, is_new] = open_.try_emplace(rank.value());
  Block& block = place->second;
  if (is_new) block.began = now;
  block.last = now;
  block.lines.emplace_back(line);
  block.bytes += line.size();
  held_ += line.size();
  const absl::string_view text = BareLine(rank, line);
  if (text == kStart ||
      std::find(std::begin(kChains), std::end(kChains), text) != std::end(kChains)) {
    block.inside = true;
  } else if (block.inside && !text.empty() && text[0] != ' ' && text[0] != '\t') {
    block.inside = false;  // the exception itself
    block.head = block.lines.size();
  }
  if (block.lines.size() >= kMostLines || block.bytes >= kMostBytes || held_ >= kMostHeld) {
    Close(place, now, out);
  } else {
    next_ = std::min(next_, block.until());
  }
  return out;
}

TracebackFold::Lines TracebackFold::End(Rank rank, TimePoint now) {
  Lines out;
  if (auto block = open_.find(rank.value()); block != open_.end()) Close(block, now, out);
  return out;
}

TracebackFold::Lines TracebackFold::Expire(TimePoint now) {
  Lines out;
  next_ = kNever;
  for (auto block = open_.begin(); block != open_.end();) {
    const auto next = std::next(block);
    const TimePoint until = block->second.until();
    if (until <= now) {
      Close(block, now, out);
    } else {
      next_ = std::min(next_, until);
    }
    block = next;
  }
  return out;
}

TimePoint TracebackFold::deadline() const {
  return std::min(next_, folded_ == kNever ? kNever : folded_ + kSummary);
}

void TracebackFold::Close(std::map<uint32_t, Block>::iterator place, TimePoint now, Lines& out) {
  const Rank rank(place->first);
  const Block block = std::move(place->second);
  open_.erase(place);
  held_ -= block.bytes;
  const size_t head = block.inside ? block.lines.size() : block.head;
  const std::string rest = Likeness(Text(rank, block.lines, head, block.lines.size()));
  const std::string text = Text(rank, block.lines, 0, head);
  std::string key = Likeness(text);
  size_t from = 0;
  auto shown = seen_.find(key);
  if (shown != seen_.end() && now < shown->second.since + kWindow &&
      shown->second.ranks.insert(rank.value()).second) {
    from = rest == shown->second.rest ? block.lines.size() : head;
    shown->second.untold.insert(rank.value());
    shown->second.differ |= text != shown->second.text;
    folded_ = now;
  } else {
    if (shown == seen_.end() && seen_.size() >= kMostSeen) {
      // The oldest whose ranks are told.
      auto oldest = seen_.end();
      for (auto it = seen_.begin(); it != seen_.end(); ++it) {
        if (!it->second.untold.empty()) continue;
        if (oldest == seen_.end() || it->second.since < oldest->second.since) oldest = it;
      }
      if (oldest != seen_.end()) seen_.erase(oldest);
    }
    if (shown != seen_.end() || seen_.size() < kMostSeen) {
      Shown& entry = seen_[std::move(key)];
      entry.first = rank;
      entry.text = text;
      entry.rest = rest;
      entry.differ = false;
      entry.ranks = {rank.value()};
      entry.since = now;
    }
  }
  for (size_t i = from; i < block.lines.size(); ++i) out.push_back({rank, block.lines[i]});
}

bool TracebackFold::has_summaries() const { return folded_ != kNever; }

std::vector<std::string> TracebackFold::TakeSummaries() {
  std::vector<std::string> out;
  if (!has_summaries()) return out;
  folded_ = kNever;
  for (auto& [text, shown] : seen_) {
    if (shown.untold.empty()) continue;
    out.push_back(absl::StrCat(
        RankRanges(shown.untold), " wrote the same traceback as rank ", shown.first.value(),
        shown.differ ? " but for addresses, pids and numbers of ranks" : ""));
    shown.untold.clear();
  }
  return out;
}

std::string RankRanges(const std::set<uint32_t>& ranks) {
  std::vector<std::string> parts;
  for (auto it = ranks.begin(); it != ranks.end();) {
    const uint32_t first = *it;
    uint32_t last = first;
    for (++it; it != ranks.end() && *it == last + 1; ++it) last = *it;
    parts.push_back(first == last ? absl::StrCat(first) : absl::StrCat(first, "-", last));
  }
  std::string text = parts.empty() ? "" : parts.back();
  if (parts.size() > 1) {
    parts.pop_back();
    text = absl::StrCat(absl::StrJoin(parts, ", "), " and ", text);
  }
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", text);
}

}  // namespace dtrain::output
