// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/display.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "launcher/output/terminal_text.h"

namespace dtrain::output {
namespace {

// Lines are not held back beyond this.
constexpr size_t kMostWaiting = 64 << 10;
// A sequence may be cut by a read.
constexpr size_t kCutSequence = 8;

// Whether `bytes`, which follow `before`, have a sequence that `has` finds.
bool HasWithin(absl::string_view before, absl::string_view bytes, bool has(absl::string_view)) {
  const absl::string_view end =
      before.substr(before.size() - std::min(before.size(), kCutSequence));
  if (end.find('\033') != absl::string_view::npos &&
      has(absl::StrCat(end, bytes.substr(0, kCutSequence)))) {
    return true;
  }
  return has(bytes);
}

}  // namespace

bool Display::Folds(StreamId id) const {
  return sharing_.folds && id.second == v1::STREAM_KIND_STDERR && sharing_.ranks > 1;
}

void Display::Add(StreamId id, absl::FunctionRef<std::string()> prefix, absl::string_view bytes,
                  const Moment& moment) {
  if (bytes.empty()) return;
  DropStatus();
  if (sharing_.passes) {
    absl::StrAppend(&lines_, bytes);
    mid_line_ = bytes.back() != '\n';
    return;
  }
  auto [at, is_new] = streams_.try_emplace(id);
  Stream& stream = at->second;
  if (is_new) stream.prefix = prefix();
  if (std::exchange(stream.cut, false)) {
    if (stream.since != kNever) stream.since = moment.now;
    look_ = std::min(look_, moment.now + patience());
  }
  if (stream.stands == nullptr &&
      HasWithin(stream.lines.open(), bytes, is_terminal() ? NeedsScreen : MovesUp)) {
    Stand(stream);
    stream.next = std::max(stream.next, moment.now + kElsewhere);
  }
  auto take = [&](absl::string_view line) { TakeLine(id, stream, line, moment); };
  if (stream.stands != nullptr) {
    stream.stands->Add(bytes, take);
    changed_ = stream.changed = true;
    if (stream.stands->empty()) {
      Clear(id, stream);
    } else {
      unfinished_.insert(id);
      look_ = std::min(look_, draws() ? kNever : std::max(stream.next, moment.now));
    }
    return;
  }
  // Guessing lines of 50 bytes avoids most growing.
  lines_.reserve(lines_.size() + stream.lines.pending() + bytes.size() +
                 (bytes.size() / 50 + 2) * (moment.time.size() + stream.prefix.size() + 1));
  bool ended = false;
  stream.lines.Add(bytes, [&](absl::string_view line, bool) {
    take(line);
    ended = true;
  });
  if (stream.lines.pending() == 0) {
    if (stream.since != kNever) Clear(id, stream);
  } else if (ended || stream.since == kNever) {
    if (stream.since == kNever) unfinished_.insert(id);
    stream.since = moment.now;
    look_ = std::min(look_, stream.since + patience());
  }
}

Duration Display::patience() const { return is_terminal() ? kQuiet : kElsewhere; }

void Display::Stand(Stream& stream) {
  stream.stands =
      std::make_unique<StandingText>(!is_terminal()        ? StandingText::Controls::kKept
                                     : sharing_.of_another ? StandingText::Controls::kAllShown
                                                           : StandingText::Controls::kShown,
                                     stream.prefix.size());
  ++standing_;
  stream.stands->Add(stream.lines.TakeOpen(), [](absl::string_view) {});
  changed_ = stream.changed = true;
}

// Nothing of it is unfinished any more.
void Display::Clear(StreamId id, Stream& stream) {
  if (stream.stands != nullptr) --standing_;
  changed_ = changed_ || stream.stands != nullptr;
  stream.stands.reset();
  stream.since = kNever;
  stream.written.clear();
  unfinished_.erase(id);
}

// Lines that have stood long enough stand from now on; where nothing is drawn, they are written.
void Display::Expire(const Moment& moment) {
  if (moment.now < look_) return;
  look_ = kNever;
  for (const StreamId& id : unfinished_) {
    Stream& stream = streams_.at(id);
    if (stream.cut) continue;
    if (stream.stands == nullptr) {
      if (moment.now < stream.since + patience()) {
        look_ = std::min(look_, stream.since + patience());
        continue;
      }
      Stand(stream);
    }
    if (draws() || !stream.changed) continue;
    if (moment.now >= stream.next) {
      WriteStanding(id, stream, moment);
      stream.next = moment.now + kElsewhere;
      stream.changed = false;
    } else {
      look_ = std::min(look_, stream.next);
    }
  }
}

void Display::TakeLine(StreamId id, Stream& stream, absl::string_view line, const Moment& moment) {
  if (!stream.written.empty() && IsWritten(id, stream, line)) return;
  if (!Folds(id) || !fold_.Wants(Rank(id.first), line)) return AppendLine(stream, line, moment);
  for (const TracebackFold::Line& shown : fold_.Add(Rank(id.first), line, moment.now)) {
    AppendLine(stream, shown.text, moment);
  }
}

void Display::AppendLine(const Stream& stream, absl::string_view line, const Moment& moment) {
  EndTail();
  if (is_terminal() && sharing_.of_another) {
    std::string text;
    const size_t cut = AppendForOthers(line, text);
    for (char c : line.substr(line.size() - cut)) AppendEscaped(c, text);
    AppendForTerminal(text, absl::StrCat(moment.time, stream.prefix), lines_);
    lines_.push_back('\n');
  } else if (is_terminal() && sharing_.ranks > 1) {
    if (moment.time.empty()) {
      AppendForTerminal(line, stream.prefix, lines_);
    } else {
      AppendForTerminal(line, absl::StrCat(moment.time, stream.prefix), lines_);
    }
    lines_.push_back('\n');
  } else {
    lines_.append(moment.time);
    lines_.append(stream.prefix);
    lines_.append(line.data(), line.size());
    lines_.push_back('\n');
  }
}

void Display::AppendFolded(const TracebackFold::Lines& lines, const Moment& moment) {
  for (const TracebackFold::Line& line : lines) {
    AppendLine(streams_.at({line.rank.value(), v1::STREAM_KIND_STDERR}), line.text, moment);
  }
}

void Display::TellFolded() {
  for (const std::string& text : fold_.TakeSummaries()) {
    EndTail();
    absl::StrAppend(&lines_, "dtrain: ", text, " (--no-fold shows them all)\n");
  }
}

void Display::Flush(StreamId id, Stream& stream, const Moment& moment) {
  auto take = [&](absl::string_view line) { TakeLine(id, stream, line, moment); };
  if (stream.stands != nullptr) stream.stands->Flush(take);
  stream.lines.Flush([&](absl::string_view line, bool) { take(line); });
  Clear(id, stream);
  if (Folds(id)) AppendFolded(fold_.End(Rank(id.first), moment.now), moment);
}

void Display::Cut(StreamId id) {
  const auto at = streams_.find(id);
  if (at != streams_.end()) at->second.cut = true;
}

void Display::End(StreamId id, const Moment& moment) {
  auto at = streams_.find(id);
  if (at == streams_.end()) return;
  Flush(id, at->second, moment);
  streams_.erase(at);
}

void Display::EndAll(const Moment& moment) {
  for (auto& [id, stream] : streams_) Flush(id, stream, moment);
  TellFolded();
  streams_.clear();
}

void Display::DropStatus() {
  if (status_.empty()) return;
  status_.clear();
  changed_ = true;
}

void Display::Say(absl::string_view text) {
  DropStatus();
  TellFolded();
  EndTail();
  absl::StrAppend(&lines_, absl::StripSuffix(text, "\n"), "\n");
}

void Display::SetStatus(absl::string_view line) {
  if (!draws() || line == status_) return;
  status_.assign(line.data(), line.size());
  changed_ = true;
  last_ = TimePoint::min();
}

void Display::EndTail() {
  if (!mid_line_) return;
  lines_.push_back('\n');
  mid_line_ = false;
  tail_.reset();
}

// Whether a line that is finished needs nothing more, because it was written as it stood.
bool Display::IsWritten(StreamId id, Stream& stream, absl::string_view line) {
  const std::string was = std::move(stream.written.front());
  stream.written.erase(stream.written.begin());
  if (was.empty()) return false;
  if (tail_ == id && absl::StartsWith(line, was)) {
    absl::StrAppend(&lines_, line.substr(was.size()));
    EndTail();
    return true;
  }
  return line == was;
}

void Display::WriteStanding(StreamId id, Stream& stream, const Moment& moment) {
  const StandingText& stands = *stream.stands;
  stream.written.resize(stands.rows());
  for (size_t i = 0; i < stands.rows(); ++i) {
    std::string text = stands.Row(i);
    std::string& was = stream.written[i];
    if (text == was || stands.IsBlank(i)) continue;
    if (tail_ == id && absl::StartsWith(text, was)) {
      absl::StrAppend(&lines_, absl::string_view(text).substr(was.size()));
    } else {
      EndTail();
      absl::StrAppend(&lines_, moment.time, stream.prefix, text);
    }
    mid_line_ = true;
    tail_ = id;
    // What will be drawn over does not go on behind its end.
    if (kind_ == Kind::kFile || stands.overwritten() || stands.rows() > 1) EndTail();
    was = std::move(text);
  }
}

void Display::UserEndedLine() {
  if (!is_terminal()) return;
  mid_line_ = false;
  const auto finish = [this](StreamId id, const std::string& shown) {
    auto at = streams_.find(id);
    if (at == streams_.end() || at->second.stands == nullptr) return;
    // Unless more has come since.
    if (at->second.stands->Row(0) == shown) Clear(id, at->second);
  };
  if (tail_) {
    const auto at = streams_.find(*tail_);
    if (at != streams_.end() && !at->second.written.empty()) finish(*tail_, at->second.written[0]);
    tail_.reset();
  }
  if (!prompt_) return;
  // The cursor has gone to the row below, and the prompt with its answer scrolls like any line. If
  // rows were drawn again before we read the answer, the cursor stands behind the prompt's copy.
  leftovers_ = drawn_rows_ > 0;
  drawn_.clear();
  drawn_rows_ = 0;
  changed_ = true;
  last_ = TimePoint::min();
  finish(*std::exchange(prompt_, std::nullopt), prompt_text_);
}

std::vector<Display::Row> Display::StandingRows() const {
  std::vector<Row> rows;
  for (const StreamId& id : unfinished_) {
    const Stream& stream = streams_.at(id);
    for (size_t i = 0; stream.stands != nullptr && i < stream.stands->rows(); ++i) {
      if (!stream.stands->IsBlank(i)) rows.push_back({id, &stream, i});
    }
  }
  // Of a rank that has both a bar and a prompt, the prompt comes first: the cursor goes there.
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::pair(a.id.first, a.stream->stands->overwritten()) <
           std::pair(b.id.first, b.stream->stands->overwritten());
  });
  return rows;
}

std::string Display::TextOf(const Row& row, size_t columns, const std::string& time) const {
  std::string prefix = absl::StrCat(time, row.stream->prefix);
  if (prefix.size() > columns) prefix.resize(columns);
  columns -= prefix.size();
  const StandingText& stands = *row.stream->stands;
  // Of a bar the beginning counts, of a prompt the end.
  constexpr absl::string_view kCut = "...";
  if (stands.overwritten() || stands.Width(row.row) <= columns || columns <= kCut.size()) {
    return absl::StrCat(prefix, stands.Row(row.row, columns));
  }
  return absl::StrCat(prefix, kCut, stands.EndOfRow(row.row, columns - kCut.size()));
}

std::vector<std::string> Display::Texts(Size size, const std::string& time) {
  // A last column that is full makes some terminals wrap.
  const size_t columns = std::max<size_t>(size.columns, 2) - 1;
  // One row is left to the lines that scroll.
  size_t room = std::max<size_t>(size.rows, 3) - 1;
  std::vector<Row> rows = StandingRows();
  if (!status_.empty()) --room;
  const auto same_stream = [](const Row& a, const Row& b) { return a.stream == b.stream; };
  if (rows.size() > room) {
    rows.erase(std::unique(rows.begin(), rows.end(), same_stream), rows.end());
  }
  size_t others = 0;
  if (rows.size() > room) {
    std::set<uint32_t> ranks;
    for (const Row& row : rows) ranks.insert(row.id.first);
    others = ranks.size() - 1;
    const uint32_t first = rows[0].id.first;
    std::erase_if(rows, [&](const Row& row) { return row.id.first != first; });
    if (rows.size() > 1 && rows.size() + 1 > room) rows.resize(std::max<size_t>(room, 2) - 1);
  }
  prompt_.reset();
  if (!rows.empty() && !rows[0].stream->stands->overwritten()) {
    prompt_ = rows[0].id;
    prompt_text_ = rows[0].stream->stands->Row(0);
  }
  std::vector<std::string> texts;
  for (const Row& row : rows) texts.push_back(TextOf(row, columns, time));
  if (others > 0 && room > 1) {
    texts.push_back(absl::StrCat("(and ", others, " more rank", others == 1 ? "" : "s", ")"));
    if (texts.back().size() > columns) texts.back().resize(columns);
  }
  if (!status_.empty()) texts.push_back(status_);
  return texts;
}

std::string Display::Erase() {
  std::string out = drawn_rows_ > 0 || leftovers_ ? "\r\033[J" : "";
  drawn_.clear();
  drawn_rows_ = 0;
  leftovers_ = false;
  return out;
}

// The cursor stays in the first row, so that to erase all of them nothing need be known of what a
// terminal that was resized has made of them.
std::string Display::Draw(Size size, const std::string& time) {
  changed_ = false;
  const std::vector<std::string> texts = Texts(size, time);
  drawn_rows_ = texts.size();
  if (texts.empty()) return "";
  std::string out = absl::StrCat(texts[0]);
  for (size_t i = 1; i < texts.size(); ++i) absl::StrAppend(&out, "\n", texts[i]);
  if (texts.size() > 1) absl::StrAppend(&out, "\033[", texts.size() - 1, "A");
  const bool only_status = standing_ == 0 && texts.size() == 1;
  if (only_status) return out;
  if (!prompt_ || texts.size() > 1) absl::StrAppend(&out, "\r");
  if (prompt_ && texts.size() > 1) absl::StrAppend(&out, texts[0]);
  return out;
}

std::string Display::Take(const Moment& moment, absl::FunctionRef<Size()> size, bool may_draw) {
  Expire(moment);
  if (sharing_.folds && fold_.deadline() <= moment.now) {
    AppendFolded(fold_.Expire(moment.now), moment);
    if (fold_.deadline() <= moment.now) TellFolded();
  }
  if (!draws()) return std::exchange(lines_, {});
  const bool has_rows = standing_ > 0 || !status_.empty();
  if (!has_rows && drawn_rows_ == 0 && !leftovers_) {
    changed_ = false;
    return std::exchange(lines_, {});
  }
  if (lines_.empty() && ((!changed_ && !leftovers_) || !may_draw)) return "";
  const bool is_early = has_rows && moment.now < last_ + (lines_.empty() ? kQuiet : kFrame);
  if (is_early && lines_.size() < kMostWaiting) return "";
  if (has_rows && !is_early) EndTail();
  const std::string before = drawn_;
  const bool only_draws = lines_.empty() && !leftovers_;
  std::string out = Erase();
  absl::StrAppend(&out, lines_);
  if (is_early) {
    changed_ = true;
    lines_.clear();
    return out;
  }
  std::string drawn = has_rows ? Draw(size(), moment.time) : "";
  last_ = moment.now;
  drawn_ = drawn;
  const bool same = only_draws && drawn == before;
  lines_.clear();
  changed_ = false;
  return same ? "" : absl::StrCat(out, drawn);
}

TimePoint Display::deadline() const {
  TimePoint next = std::min(look_, sharing_.folds ? fold_.deadline() : kNever);
  if (!draws()) return next;
  if (!lines_.empty()) return std::min(next, last_ + kFrame);
  return changed_ || leftovers_ ? std::min(next, last_ + kQuiet) : next;
}

}  // namespace dtrain::output
