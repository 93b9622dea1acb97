// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/unfinished_lines.h"

#include <algorithm>

namespace dtrain::shepherd {

void UnfinishedLines::OnGrown(TimePoint now, const Key& key, uint64_t lines, uint64_t size) {
  Stream& stream = streams_[key];
  stream.size = size;
  stream.passed = std::max(stream.passed, lines);
  if (size - stream.passed > kMostHeld) stream.passed = size;
  if (stream.passed == size) {
    held_.erase(key);
    return;
  }
  held_.insert(key);
  // After a quiet time it need not wait: it may be a prompt.
  if (held_.size() > 1 || now < next_) return;
  next_ = now + kPause;
  LetGo(key);
}

void UnfinishedLines::LetGo(const Key& key) {
  if (held_.erase(key) == 0) return;
  Stream& stream = streams_[key];
  stream.passed = stream.size;
}

std::vector<UnfinishedLines::Key> UnfinishedLines::OnTime(TimePoint now) {
  if (now < NextDeadline()) return {};
  next_ = now + kPause;
  std::vector<Key> due(held_.begin(), held_.end());
  for (const Key& key : due) LetGo(key);
  return due;
}

UnfinishedLines::Stream UnfinishedLines::Find(const Key& key) const {
  const auto found = streams_.find(key);
  return found == streams_.end() ? Stream{} : found->second;
}

}  // namespace dtrain::shepherd
