// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/stdin_feeder.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/base/check.h"
#include "common/os/fd.h"

namespace dtrain::shepherd {

StdinFeeder::StdinFeeder(loop::Loop& loop, os::UniqueFd pipe, OnTaken on_taken)
    : pipe_(std::move(pipe)), on_taken_(std::move(on_taken)) {
  DTRAIN_CHECK(os::SetNonBlocking(pipe_.get(), true).ok());
  watch_ = std::make_unique<loop::FdWatch>(loop, pipe_.get());
}

void StdinFeeder::Write(absl::string_view data, bool end) {
  if (!pipe_) {
    on_taken_(true);
    return;
  }
  pending_.append(data.data(), data.size());
  end_ |= end;
  // The sender keeps one piece outstanding; should it send another, both are answered as one.
  if (std::exchange(busy_, true)) return;
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
  pending_.clear();
  written_ = 0;
  busy_ = false;
  if (end_) {
    watch_.reset();
    pipe_.Reset();
  }
  on_taken_(false);
}

void StdinFeeder::Close() {
  if (!pipe_) return;
  watch_.reset();
  pipe_.Reset();
  pending_.clear();
  busy_ = false;
  on_taken_(true);
}

}  // namespace dtrain::shepherd
