// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn/shepherd_words.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "common/log/log.h"

namespace dtrain::spawn {
namespace {

// A shepherd has something to say when it is in trouble: a line or two.
constexpr int kMostLines = 20;
constexpr Duration kPeriod = std::chrono::minutes(1);
constexpr size_t kMostOfLine = 1000;

}  // namespace

ShepherdWords::ShepherdWords(loop::Loop& loop, os::UniqueFd pipe, std::string author)
    : loop_(loop),
      pipe_(std::move(pipe)),
      author_(std::move(author)),
      watch_(loop, pipe_.get()),
      pause_(loop),
      since_(loop.Now()) {
  Await();
}

ShepherdWords::~ShepherdWords() {
  while (MayWrite() && ReadSome()) {
  }
  if (!begun_.empty() && MayWrite()) Write(begun_);
}

void ShepherdWords::Await() {
  if (ended_) return;
  watch_.OnReadable([this] {
    (void)ReadSome();
    if (MayWrite()) return Await();
    // Nothing is read meanwhile: its author may write without an end.
    pause_.At(since_ + kPeriod, [this] { Await(); });
  });
}

bool ShepherdWords::ReadSome() {
  char bytes[kMostOfLine];
  const ssize_t count = read(pipe_.get(), bytes, sizeof(bytes));
  if (count <= 0) {
    ended_ = count == 0 || (errno != EAGAIN && errno != EINTR);
    return false;
  }
  for (const char c : absl::string_view(bytes, static_cast<size_t>(count))) {
    if (c != '\n') begun_ += c;
    if (c != '\n' && begun_.size() < kMostOfLine) continue;
    Write(std::exchange(begun_, ""));
  }
  return true;
}

bool ShepherdWords::MayWrite() {
  if (loop_.Now() - since_ >= kPeriod) {
    since_ = loop_.Now();
    written_ = 0;
  }
  return written_ < kMostLines;
}

void ShepherdWords::Write(absl::string_view line) {
  const bool fits = MayWrite();
  ++written_;
  if (line.empty() || !fits) return;
  log::Warn(absl::StrCat(author_, ": ", Escape(line, kMostOfLine)));
}

}  // namespace dtrain::spawn
