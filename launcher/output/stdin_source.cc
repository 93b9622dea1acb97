// SPDX-License-Identifier: Apache-2.0
#include "launcher/output/stdin_source.h"

#include <fcntl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

namespace dtrain::output {
namespace {

constexpr size_t kChunk = 64 << 10;
// How soon we notice that the user brought us back to the foreground.
constexpr auto kRetry = std::chrono::seconds(1);

}  // namespace

StdinSource::StdinSource(loop::Loop& loop, Send send, OnEcho on_echo, int fd)
    : loop_(loop),
      send_(std::move(send)),
      on_echo_(std::move(on_echo)),
      fd_(fd),
      is_terminal_(isatty(fd) == 1),
      retry_(loop) {}

StdinSource::~StdinSource() { *alive_ = false; }

bool StdinSource::Echoes() const {
  termios state{};
  return is_terminal_ && tcgetattr(fd_, &state) == 0 && (state.c_lflag & ECHO) != 0;
}

// A terminal that does not control us (su -c, setsid) has no background for us: reading it stops
// nobody.
bool StdinSource::InBackground() const {
  const pid_t front = tcgetpgrp(fd_);
  return is_terminal_ && front >= 0 && front != getpgrp();
}

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
  if (is_terminal_ && !waits_) return;
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
  waits_ = false;
  if (busy_.empty()) return;
  busy_.clear();
  read_ = sent_;  // nobody knows: their host is lost
  Settle();
}

void StdinSource::OnRead(std::string data) {
  if (receivers_.empty()) {
    if (!reader_->keeps()) held_ = std::move(data);
    return;
  }
  std::set<Rank> receivers = receivers_;
  bool end = data.empty();
  if (end) {
    receivers_.clear();
  } else {
    busy_ = receivers_;
    sent_ = data.size();
  }
  waits_ = false;
  if (absl::EndsWith(data, "\n") && Echoes()) on_echo_();
  for (Rank rank : receivers) send_(rank, data, end);
}

// All that got the last chunk are done with it.
void StdinSource::Settle() {
  reader_->Take(std::exchange(read_, 0));
  sent_ = 0;
}

void StdinSource::Taken(Rank rank, bool closed, uint64_t unread) {
  if (closed) receivers_.erase(rank);
  if (busy_.erase(rank) > 0) {
    read_ = std::max(read_, sent_ - static_cast<size_t>(std::min<uint64_t>(unread, sent_)));
    if (busy_.empty()) Settle();
  }
  Next();
}

// It may say so before Start: its host was ready before others.
void StdinSource::Waits() {
  waits_ = true;
  Next();
}

}  // namespace dtrain::output
