// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/job_words.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"

namespace dtrain::spawn {
namespace {

// One that writes without an end takes a few milliseconds of our second.
constexpr size_t kWordsAtOnce = 16 << 10;
constexpr Duration kWordsPause = std::chrono::milliseconds(20);

}  // namespace

JobWords::JobWords(loop::Loop& loop, os::UniqueFd pipe, std::string author)
    : loop_(loop),
      pipe_(std::move(pipe)),
      author_(std::move(author)),
      watch_(loop, pipe_.get()),
      pause_(loop) {
  Await();
}

JobWords::~JobWords() {
  // What a pipe holds.
  for (int i = 0; i < 64 && ReadOnce(); ++i) {
  }
  Log(limits_.End(loop_.Now()));
}

void JobWords::Await() {
  watch_.OnReadable([this] { Read(); });
}

void JobWords::Read() {
  (void)ReadOnce();
  if (ended_) return;
  pause_.After(kWordsPause, [this] { Await(); });
}

bool JobWords::ReadOnce() {
  if (ended_) return false;
  char bytes[kWordsAtOnce];
  const ssize_t count = read(pipe_.get(), bytes, sizeof(bytes));
  if (count <= 0) {
    ended_ = count == 0 || (errno != EAGAIN && errno != EINTR);
    return false;
  }
  Log(limits_.Take(loop_.Now(), {bytes, static_cast<size_t>(count)}));
  return true;
}

void JobWords::Log(const std::vector<std::string>& lines) const {
  for (const std::string& line : lines) log::Warn(absl::StrCat(author_, ": ", line));
}

}  // namespace dtrain::spawn
