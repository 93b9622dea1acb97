// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/stdin_feeder.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/os/fd.h"
#include "common/os/process_facts.h"
#include "common/os/process_tree.h"

namespace dtrain::shepherd {
namespace {

// The kernel does not tell when a pipe has become empty.
constexpr Duration kFirstLookAtPipe = std::chrono::microseconds(100);
constexpr Duration kLongestLookAtPipe = std::chrono::milliseconds(250);
// A prompt that is answered so late seems to be answered at once; then not much later.
constexpr Duration kLookForWaiting = std::chrono::milliseconds(50);
constexpr Duration kLongestLookForWaiting = std::chrono::milliseconds(500);
constexpr size_t kMostOfFamily = 32;
constexpr size_t kAll = std::numeric_limits<size_t>::max();
// Where the kernel does not say who waits, the worker is taken to.
constexpr Duration kWaitsUnlessKnown = std::chrono::seconds(1);

}  // namespace

StdinFeeder::StdinFeeder(loop::Loop& loop, os::UniqueFd pipe, pid_t worker, bool is_terminal,
                         OnTaken on_taken)
    : loop_(loop),
      pipe_(std::move(pipe)),
      worker_(worker),
      on_taken_(std::move(on_taken)),
      timer_(loop) {
  DTRAIN_CHECK(os::SetNonBlocking(pipe_.get(), true).ok());
  watch_ = std::make_unique<loop::FdWatch>(loop, pipe_.get());
  struct stat status;
  if (!is_terminal || fstat(pipe_.get(), &status) != 0) return;
  pipe_name_ = absl::StrCat("pipe:[", status.st_ino, "]");
  LookForWaiting();
}

void StdinFeeder::Write(absl::string_view data, bool end) {
  if (!pipe_) return on_taken_({.closed = true, .unread = data.size()});
  pending_.append(data.data(), data.size());
  end_ |= end;
  // The sender keeps one piece outstanding; should it send another, both are answered as one.
  if (std::exchange(busy_, true)) return;
  pause_ = kFirstLookAtPipe;
  Flush();
}

void StdinFeeder::Flush() {
  if (!pipe_) return;
  while (written_ < pending_.size()) {
    ssize_t n = write(pipe_.get(), pending_.data() + written_, pending_.size() - written_);
    if (n >= 0) {
      written_ += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      watch_->OnWritable([this] { Flush(); });
      return;
    } else if (errno != EINTR) {
      Close();  // EPIPE
      return;
    }
  }
  AwaitReader();
}

void StdinFeeder::AwaitReader() {
  if (!pipe_) return;
  if (written_ < pending_.size()) return Flush();  // another piece has come
  if (InPipe() > 0) {
    pollfd reader{pipe_.get(), 0, 0};
    if (poll(&reader, 1, 0) > 0 && (reader.revents & POLLERR) != 0) return Close();
    timer_.After(pause_, [this] { AwaitReader(); });
    pause_ = std::min(pause_ * 2, kLongestLookAtPipe);
    return;
  }
  pending_.clear();
  written_ = 0;
  busy_ = false;
  if (end_) {
    watch_.reset();
    timer_.Cancel();
    pipe_.Reset();
  } else if (!pipe_name_.empty()) {
    LookForWaiting();
  }
  on_taken_({});
}

void StdinFeeder::LookForWaiting() {
  if (!pipe_ || busy_) return;
  std::optional<bool> waits;
  std::vector<pid_t> family{worker_};
  for (size_t i = 0; i < family.size() && i < kMostOfFamily && !waits.value_or(false); ++i) {
    if (const auto one = os::WaitsForInput(family[i], pipe_name_)) waits = one;
    const std::vector<pid_t> children = os::ChildrenOfMainThread(family[i]);
    family.insert(family.end(), children.begin(), children.end());
  }
  const TimePoint now = loop_.Now();
  unknown_since_ = waits.has_value() ? kNever : std::min(unknown_since_, now);
  if (waits.value_or(now >= unknown_since_ && now - unknown_since_ >= kWaitsUnlessKnown)) {
    return on_taken_({.waits = true});
  }
  // Most jobs never ask, and have many threads to look at.
  pause_ = std::clamp(pause_ * 2, kLookForWaiting, kLongestLookForWaiting);
  timer_.After(pause_, [this] { LookForWaiting(); });
}

size_t StdinFeeder::InPipe() const {
  int bytes = 0;
  (void)ioctl(pipe_.get(), FIONREAD, &bytes);
  return static_cast<size_t>(bytes);
}

void StdinFeeder::Close() {
  if (!pipe_) return;
  const size_t unread = busy_ ? InPipe() + pending_.size() - written_ : kAll;
  watch_.reset();
  timer_.Cancel();
  pipe_.Reset();
  pending_.clear();
  busy_ = false;
  on_taken_({.closed = true, .unread = unread});
}

}  // namespace dtrain::shepherd
