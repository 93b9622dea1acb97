// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/progress.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/text.h"

namespace dtrain::report {
namespace {

constexpr auto kFirstDraw = std::chrono::milliseconds(300);
constexpr auto kShortest = std::chrono::milliseconds(100);
constexpr auto kClock = std::chrono::milliseconds(500);  // the clocks move without any event
constexpr size_t kNamedNodes = 3;

std::string WaitingFor(const JobFacts& facts) {
  std::vector<std::string> names;
  size_t more = 0;
  for (const job::NodeView& node : facts.nodes) {
    if (!IsWaiting(facts.state, node)) continue;
    if (names.size() == kNamedNodes) {
      ++more;
      continue;
    }
    std::string name = Escape(node.host, 40);
    if (!node.waiting_for.empty()) absl::StrAppend(&name, " (", Escape(node.waiting_for, 60), ")");
    names.push_back(std::move(name));
  }
  if (names.empty()) return "";
  std::string text = absl::StrCat(", waiting for ", absl::StrJoin(names, ", "));
  if (more > 0) absl::StrAppend(&text, " and ", more, " more");
  return text;
}

std::string DoneOf(const JobFacts& facts) {
  size_t done = 0;
  size_t all = 0;
  if (facts.state == job::State::kStopping) {
    all = facts.ranks.size();
    for (const job::RankEnd& end : facts.ranks) done += end.ended;
  } else {
    all = facts.nodes.size();
    for (const job::NodeView& node : facts.nodes) done += !IsWaiting(facts.state, node);
  }
  return all == 0 ? "" : absl::StrCat(" ", done, "/", all);
}

}  // namespace

std::string ProgressLine(const JobFacts& facts, TimePoint now, size_t width) {
  if (facts.state == job::State::kRunning || facts.state == job::State::kFinished) return "";
  std::vector<std::string> parts;
  for (const job::PhaseTime& phase : facts.phases) {
    std::string time = Seconds((phase.end == kNever ? now : phase.end) - phase.begin);
    bool present = phase.end == kNever && phase.state == facts.state;
    parts.push_back(absl::StrCat(PhaseName(phase.state), present ? DoneOf(facts) : "", " ", time));
  }
  const bool again = facts.campaign != nullptr && facts.campaign->attempt() > 0;
  std::string line =
      absl::StrCat(again ? absl::StrCat("attempt ", facts.campaign->attempt(), ": ") : "",
                   absl::StrJoin(parts, ", "), WaitingFor(facts));
  // One column is left free: a full last column makes some terminals wrap.
  if (width > 4 && line.size() >= width) {
    line.resize(width - 4);
    // Not within a character.
    while (!line.empty() && (static_cast<unsigned char>(line.back()) & 0x80) != 0) line.pop_back();
    line += "...";
  }
  return line;
}

void SlowestNodes::Look(const JobFacts& facts, size_t node, TimePoint now) {
  const bool waiting = IsWaiting(facts.state, facts.nodes[node]);
  if (was_waiting_[node] && !waiting) phases_[facts.state] = {facts.nodes[node].host, now};
  was_waiting_[node] = waiting;
}

void SlowestNodes::Observe(const JobFacts& facts, std::optional<NodeId> of, TimePoint now) {
  const bool is_new = facts.state != state_ || was_waiting_.size() != facts.nodes.size();
  if (facts.state != state_) {
    // Those still waiting when the phase ended were what it waited for.
    for (size_t i = 0; i < was_waiting_.size() && i < facts.nodes.size(); ++i) {
      if (was_waiting_[i]) phases_[state_] = {facts.nodes[i].host, now};
    }
    state_ = facts.state;
    was_waiting_.assign(facts.nodes.size(), false);
  }
  if (facts.state >= job::State::kRunning) return;
  was_waiting_.resize(facts.nodes.size());
  if (!is_new) {
    if (of && of->value() < facts.nodes.size()) Look(facts, of->value(), now);
    return;
  }
  for (size_t i = 0; i < facts.nodes.size(); ++i) Look(facts, i, now);
}

std::string PhaseTable(const JobFacts& facts, const SlowestNodes& slowest, TimePoint now) {
  std::string table = absl::StrFormat("%-14s %10s  %s\n", "phase", "time", "slowest node");
  TimePoint begin = now;
  for (const job::PhaseTime& phase : facts.phases) {
    if (phase.state == job::State::kFinished) continue;
    begin = std::min(begin, phase.begin);
    std::string last;
    auto it = slowest.phases().find(phase.state);
    if (it != slowest.phases().end()) {
      last = absl::StrCat("  ", Escape(it->second.host, 60), " (",
                          Seconds(it->second.done - phase.begin), ")");
    }
    std::string time = Seconds((phase.end == kNever ? now : phase.end) - phase.begin);
    absl::StrAppendFormat(&table, "%-14s %10s%s\n", PhaseName(phase.state), time, last);
  }
  absl::StrAppendFormat(&table, "%-14s %10s\n", "all", Seconds(now - begin));
  return table;
}

Progress::Progress(loop::Loop& loop, absl::AnyInvocable<std::string(TimePoint)> line,
                   absl::AnyInvocable<void(absl::string_view)> show)
    : loop_(loop),
      line_(std::move(line)),
      show_(std::move(show)),
      next_(loop.Now() + kFirstDraw),
      timer_(loop) {}

void Progress::Update() {
  if (stopped_) return;
  TimePoint now = loop_.Now();
  if (now >= next_) {
    Draw();
  } else if (!armed_) {
    armed_ = true;
    timer_.At(next_, [this] { Draw(); });
  }
}

void Progress::Draw() {
  TimePoint now = loop_.Now();
  std::string line = line_(now);
  show_(line);
  next_ = now + kShortest;
  // Without a line there is no clock to move; the next Update draws again.
  armed_ = false;
  if (line.empty()) {
    timer_.Cancel();
  } else {
    timer_.At(now + kClock, [this] { Draw(); });
  }
}

void Progress::Stop() {
  stopped_ = true;
  timer_.Cancel();
  show_("");
}

size_t TerminalWidth(int fd) {
  winsize size{};
  return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace dtrain::report
