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
// of them has taken the last, so that nothing piles up. Never reads from a terminal whose
// foreground job we are not, which would stop us or steal the shell's input. Loop thread.
class StdinSource {
 public:
  // `end` comes once for a rank, without data: no more will come.
  using Send = absl::AnyInvocable<void(Rank rank, absl::string_view data, bool end)>;

  StdinSource(loop::Loop& loop, Send send, int fd = 0);
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
  // The rank's last chunk was written; `closed`: it wants no more.
  void Taken(Rank rank, bool closed);
  // It ended, with or without having taken its last chunk.
  void RankEnded(Rank rank) { Taken(rank, true); }
  // Nobody is left to take anything, until the next Start: that one gets what has not been sent.
  void Pause();

 private:
  void Next();
  void OnRead(std::string data);
  bool InBackground() const;

  loop::Loop& loop_;
  Send send_;
  const int fd_;
  std::set<Rank> receivers_;  // that still want more
  std::set<Rank> busy_;       // of these, who have not taken the last chunk
  std::string held_;          // was read when nobody was there
  bool reading_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  loop::Timer retry_;
  std::unique_ptr<loop::BlockingReader> reader_;  // null: our stdin is closed
};

}  // namespace dtrain::output
