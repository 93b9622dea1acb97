// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/loop/loop.h"
#include "launcher/report/facts.h"

namespace dtrain::report {

// "connect 0.21 s, start 3/4 1.20 s, waiting for node3 (ssh authentication)": the phases that are
// over with their times, the present one with how many nodes are done and who is not. At most
// `width` columns. Empty while the workers run. Pure.
std::string ProgressLine(const JobFacts& facts, TimePoint now, size_t width);

// Which node each phase waited for longest. Pure.
class SlowestNodes {
 public:
  // After every event, until the workers run. `of`: the node that it was of, if of one: what the
  // others do has not changed, unless the phase has.
  void Observe(const JobFacts& facts, std::optional<NodeId> of, TimePoint now);

  struct Slowest {
    std::string host;
    TimePoint done;
  };
  const std::map<job::State, Slowest>& phases() const { return phases_; }

 private:
  job::State state_ = job::State::kConnecting;
  void Look(const JobFacts& facts, size_t node, TimePoint now);
  std::vector<bool> was_waiting_;
  std::map<job::State, Slowest> phases_;
};

// The table -v prints: each phase, its time, the node it waited for. Lines with a newline each.
// Pure.
std::string PhaseTable(const JobFacts& facts, const SlowestNodes& slowest, TimePoint now);

// Draws the live line: not in the first moments, as a quick launch needs none, and at most ten
// times a second. Loop thread.
class Progress {
 public:
  // `line` makes it, `show` puts it on the terminal (empty: takes it away).
  Progress(loop::Loop& loop, absl::AnyInvocable<std::string(TimePoint now)> line,
           absl::AnyInvocable<void(absl::string_view)> show);

  // Something may have changed. Before the first call nothing is drawn.
  void Update();
  // Takes the line away, for good.
  void Stop();

 private:
  void Draw();
  loop::Loop& loop_;
  absl::AnyInvocable<std::string(TimePoint)> line_;
  absl::AnyInvocable<void(absl::string_view)> show_;
  TimePoint next_;
  bool armed_ = false;
  bool stopped_ = false;
  loop::Timer timer_;
};

// Columns of the terminal, 80 when it does not tell.
size_t TerminalWidth(int fd);

}  // namespace dtrain::report
