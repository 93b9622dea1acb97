// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/shepherd/spool_file.h"
#include "common/loop/loop.h"
#include "common/os/unique_fd.h"

namespace dtrain::shepherd {

// One worker's stdout or stderr: moves what the pipe gives into a spool, which is made with the
// first byte: most ranks write to one stream or none, and a file is a good part of what starting a
// rank costs. When more than the limit waits for the launcher it stops reading, which throttles the
// worker and loses nothing. Loop thread.
class LogStream {
 public:
  using OnGrown = absl::AnyInvocable<void()>;  // the spool has more; asks for no answer
  // The spool takes no more, in no place; the stream goes on by itself when it does. OUT_OF_RANGE:
  // it never will (EFBIG).
  using OnStuck = absl::AnyInvocable<void(absl::Status)>;

  struct Limits {
    uint64_t undelivered_bytes;  // more than this in the spool: the worker waits
    int pipe_bytes;              // asked of the kernel; a power of two
  };

  // `directories`: as SpoolFile takes them.
  LogStream(loop::Loop& loop, os::UniqueFd pipe, std::vector<std::string> directories,
            Limits limits, OnGrown on_grown, OnStuck on_stuck);
  LogStream(const LogStream&) = delete;
  LogStream& operator=(const LogStream&) = delete;

  void Delivered(uint64_t offset);
  // Nobody will read it any more: what comes is thrown away, so that no worker waits for room.
  void Discard();
  // Takes what the pipe holds now, past the limit. True when nothing is left in it, or when the
  // spool is as large as a file may be (RLIMIT_FSIZE): Pending says how much is lost then.
  bool Drain();
  // All writers are gone and everything is in the spool.
  bool ended() const { return pipe_.get() < 0; }
  // Bytes still in the pipe, lost when it is closed now.
  uint64_t Pending() const;
  // Why the spool took no more when it was last stuck.
  const absl::Status& why_stuck() const { return why_stuck_; }
  void Close();

  uint64_t size() const { return spool_.size(); }
  uint64_t delivered() const { return delivered_; }
  // What was before it is not in the spool any more.
  uint64_t kept_from() const { return spool_.kept_from(); }
  // Moves up to `room` bytes, one at least, from `offset` on, which is below size(), into a pipe
  // that is empty; without a copy, where the file system can do that.
  absl::StatusOr<size_t> MoveTo(int pipe, uint64_t offset, size_t room) const;
  // The offset behind the last newline in the bytes from `from` on; 0: the last `most` of them have
  // none. size() if they cannot be read.
  uint64_t EndOfLines(uint64_t from, uint64_t most) const;
  // The last lines, for the report on a failure.
  std::string Tail(size_t lines, size_t bytes) const;

 private:
  enum class Moved { kSome, kNothing, kEnd, kStuck };
  void Arm();
  void OnReadable();
  Moved Move();
  Moved Copy();
  Moved Stuck(int error);
  void Reclaim();
  std::string Last(uint64_t bytes) const;
  bool full() const;

  loop::Loop& loop_;
  os::UniqueFd pipe_;
  SpoolFile spool_;
  const uint64_t limit_;
  OnGrown on_grown_;
  OnStuck on_stuck_;
  std::unique_ptr<loop::FdWatch> watch_;
  loop::Timer retry_;
  uint64_t delivered_ = 0;
  uint64_t last_moved_ = 0;
  bool armed_ = false;
  bool discard_ = false;
  bool can_splice_ = true;
  absl::Status why_stuck_;
  bool too_large_ = false;  // for a file of ours, by RLIMIT_FSIZE
  std::string held_;        // read, but not taken by the spool yet (only without splice)
};

}  // namespace dtrain::shepherd
