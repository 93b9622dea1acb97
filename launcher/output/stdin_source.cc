// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/stdin_source.h"

#include <fcntl.h>
#include <termios.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/numbers.h"

namespace dtrain::output {
namespace {

constexpr size_t kChunk = 64 << 10;
// How soon we notice that the user brought us back to the foreground.
constexpr auto kRetry = std::chrono::seconds(1);

}  // namespace

StdinSource::StdinSource(loop::Loop& loop, Send send, int fd)
    : loop_(loop), send_(std::move(send)), fd_(fd), retry_(loop) {}

StdinSource::~StdinSource() { *alive_ = false; }

bool StdinSource::InBackground() const { return isatty(fd_) == 1 && tcgetpgrp(fd_) != getpgrp(); }

absl::Status StdinSource::Open() {
  if (fcntl(fd_, F_GETFD) < 0) return absl::OkStatus();
  auto reader = std::make_unique<loop::BlockingReader>(loop_, fd_);
  if (!reader->status().ok()) return reader->status();
  reader_ = std::move(reader);
  return absl::OkStatus();
}

void StdinSource::Start(absl::string_view who, uint32_t world_size) {
  uint32_t only = 0;
  if (who == "all") {
    for (uint32_t rank = 0; rank < world_size; ++rank) receivers_.insert(Rank(rank));
  } else if (absl::SimpleAtoi(who, &only) && only < world_size) {
    receivers_.insert(Rank(only));
  }
  if (receivers_.empty()) return;
  if (reader_ == nullptr || InBackground()) return OnRead("");
  Next();
}

void StdinSource::Next() {
  if (reading_ || receivers_.empty() || !busy_.empty() || reader_ == nullptr) return;
  if (!held_.empty()) return OnRead(std::exchange(held_, {}));
  if (InBackground()) {
    retry_.After(kRetry, [this] { Next(); });
    return;
  }
  reading_ = true;
  reader_->Read(kChunk, [this, alive = alive_](std::string data) {
    if (!*alive) return;
    reading_ = false;
    // A terminal that took the foreground away meanwhile fails the read (our thread blocks
    // SIGTTIN); its input has not ended.
    if (data.empty() && InBackground()) {
      Next();
    } else {
      OnRead(std::move(data));
    }
  });
}

void StdinSource::Pause() {
  receivers_.clear();
  busy_.clear();
}

void StdinSource::OnRead(std::string data) {
  if (receivers_.empty()) {
    held_ = std::move(data);
    return;
  }
  std::set<Rank> receivers = receivers_;
  bool end = data.empty();
  if (end) {
    receivers_.clear();
  } else {
    busy_ = receivers_;
  }
  for (Rank rank : receivers) send_(rank, data, end);
}

void StdinSource::Taken(Rank rank, bool closed) {
  if (closed) receivers_.erase(rank);
  busy_.erase(rank);
  Next();
}

}  // namespace dtrain::output
