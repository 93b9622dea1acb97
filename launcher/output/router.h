// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/loop/loop.h"
#include "common/loop/threads.h"
#include "dtrain/v1/job.pb.h"
#include "dtrain/v1/journal.pb.h"
#include "launcher/output/display.h"
#include "launcher/output/layout.h"
#include "launcher/output/options.h"

namespace dtrain::output {

class LogFiles;
struct LogNames;

// How output is shown at this descriptor, and the size of the terminal there.
Display::Kind KindOf(int fd);
Display::Size SizeOf(int fd);

// Brings the workers' output, and what dtrain says itself, to our stdout, stderr and log files, as
// Display shows it. Nothing here waits for a terminal or a disk: what they have not yet taken is
// counted, and whoever feeds us stops when Full(). Loop thread.
class OutputRouter {
 public:
  // Bytes that may wait. A chunk or two more may come until all feeders have stopped.
  static constexpr size_t kLimit = 4 << 20;

  struct Callbacks {
    // Our stdout is gone (EPIPE, a full disk). Once; what follows is dropped, unless stderr is the
    // same.
    absl::AnyInvocable<void(absl::Status)> on_failed;
    // One line for the user: a log file could not be written, or somebody changed it. Once each.
    absl::AnyInvocable<void(std::string)> on_warning;
    // Log files lack more than they did: each that does, at most each second.
    absl::AnyInvocable<void(v1::OutputLost)> on_lost = {};
  };

  OutputRouter(loop::Loop& loop, Options options, Callbacks callbacks, int out_fd = 1,
               int err_fd = 2);
  ~OutputRouter();
  OutputRouter(const OutputRouter&) = delete;
  OutputRouter& operator=(const OutputRouter&) = delete;

  // Makes the folder of the log files and proves that they can be made there, and that no other job
  // writes to them: to those it says that `holder` does (empty: nothing). `lost`: with launchers
  // before us. Before any worker starts.
  absl::Status Open(std::string holder = "", v1::OutputLost lost = {});
  // Before the first Deliver: decides whether lines get a tag, which are shown and where they go.
  void SetLayout(Layout layout);

  void Deliver(absl::string_view host, Rank rank, v1::StreamKind stream, std::string bytes);
  // Nothing more will come: a line without an end goes out.
  void EndOfStream(Rank rank, v1::StreamKind stream);
  // Its output broke off on the way, and goes on later: an unfinished line of it does not stand.
  void Cut(Rank rank);

  bool Full() const;
  // Calls `task`, once, when it is no longer (or not) full. Any number may wait.
  void WhenRoom(loop::Task task);

  // dtrain's own words, on stderr, between whole lines; a newline is added where none is.
  void Say(absl::string_view text);
  // The live line at the bottom of a terminal: replaces the last one; any other output takes it
  // away until the next call. Empty: takes it away. Nothing happens when stderr is no terminal, or
  // one that can draw nothing.
  void ShowStatus(absl::string_view line);
  bool is_terminal() const { return err_->draws; }
  // A line was read from the terminal, which has shown it.
  void UserEndedLine();
  // Why output was first lost, such as a full disk. OK: none was; a reader that left loses nothing.
  const absl::Status& lost() const { return lost_; }
  // What the log files lack, for the user; empty: nothing. After FinishFiles.
  std::string MissingInFiles() const;
  v1::OutputLost LostInFiles() const;  // the same for launchers after us
  // Nothing more is delivered. Calls `done` when all of it is in the log files, or cannot be. Only
  // once: who has stopped waiting for a disk does not wait again.
  void FinishFiles(loop::Task done);

  // Lines without an end and tracebacks that are held back go out: what is said next comes after
  // all that was delivered.
  void FlushLines();
  // FlushLines, and `done` is called when everything is written or has failed. It is not called
  // while a terminal or pipe takes nothing.
  void Finish(loop::Task done);
  // For after the loop: what was said is written, or `at_most` is over.
  void FinishSaying(Duration at_most);

 private:
  // What our stdout or stderr is, or both.
  struct Sink {
    Sink(loop::Loop& loop, int descriptor, absl::AnyInvocable<void(absl::Status)> on_error);
    const int fd;
    Display display;
    const bool draws;
    loop::BlockingWriter writer;
    loop::Timer timer;
    TimePoint due = kNever;  // when timer tells
  };

  bool Shows(Rank rank, v1::StreamKind kind) const;
  LogNames Names() const;
  Display::Moment Now() const;
  Sink& Of(v1::StreamKind kind) { return kind == v1::STREAM_KIND_STDERR || !out_ ? *err_ : *out_; }
  void OnError(absl::Status why, bool is_terminal, bool is_stdout);
  void Pump(Sink& sink);
  void CheckRoom();

  loop::Loop& loop_;
  const Options options_;
  Callbacks callbacks_;
  Layout layout_;
  uint32_t world_size_ = 2;
  bool waiting_ = false;
  absl::Status lost_;
  std::vector<loop::Task> room_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::unique_ptr<LogFiles> files_;
  bool files_are_over_ = false;  // or are waited for
  std::unique_ptr<Sink> out_;    // null: it is the same as stderr, and one writer keeps their order
  std::unique_ptr<Sink> err_;
};

}  // namespace dtrain::output
