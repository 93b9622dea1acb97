// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"

namespace dtrain::output {

// Hands our stdin to the workers that want it, a chunk at a time: the next is read only when each
// of them has read the last, so that nothing piles up. What none of them has read stays there for
// whoever reads our stdin after us: the script that has launched the job. A terminal cannot give
// anything back, and is read only when a worker waits for its input, and never while we are not its
// foreground job, which would stop us or steal the shell's input. Loop thread.
class StdinSource {
 public:
  // `end` comes once for a rank, without data: no more will come.
  using Send = absl::AnyInvocable<void(Rank rank, absl::string_view data, bool end)>;

  // A line was read from a terminal, which has shown it as the user typed it.
  using OnEcho = absl::AnyInvocable<void()>;

  StdinSource(loop::Loop& loop, Send send, OnEcho on_echo, int fd = 0);
  ~StdinSource();
  StdinSource(const StdinSource&) = delete;
  StdinSource& operator=(const StdinSource&) = delete;

  // Gets what it takes to read, before any worker runs; reads nothing yet. RESOURCE_EXHAUSTED:
  // there is no thread for it, and a job that went on without would take that for its input's end.
  absl::Status Open();
  // The workers run, those of a first attempt or of a later one. `who` is "none", "all" or a rank
  // below `world_size`. Whoever started us in the background of a terminal has nothing to give:
  // that is an end of file at once. Once it is open.
  void Start(absl::string_view who, uint32_t world_size);
  // The rank has read its last chunk, but for `unread` bytes of it; `closed`: it wants no more.
  void Taken(Rank rank, bool closed, uint64_t unread = 0);
  // A rank waits for input, having read all there was; it does not say so again.
  void Waits();
  // It ended, with or without having said what it has read.
  void RankEnded(Rank rank) { Taken(rank, true); }
  // Nobody is left to take anything, until the next Start: that one gets what has not been read.
  void Pause();

 private:
  void Next();
  void OnRead(std::string data);
  void Settle();
  bool InBackground() const;
  bool Echoes() const;

  loop::Loop& loop_;
  Send send_;
  OnEcho on_echo_;
  const int fd_;
  const bool is_terminal_;
  std::set<Rank> receivers_;  // that still want more
  std::set<Rank> busy_;       // of these, who have not read the last chunk
  bool waits_ = false;        // one of them waits; counts for a terminal only
  size_t sent_ = 0;           // bytes of the last chunk, while somebody is busy with it
  size_t read_ = 0;           // of these, what somebody has read
  std::string held_;          // was read of a terminal when nobody was there
  bool reading_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  loop::Timer retry_;
  std::unique_ptr<loop::BlockingReader> reader_;  // null: our stdin is closed
};

}  // namespace dtrain::output
