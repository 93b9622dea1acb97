// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

namespace dtrain {

// One direction of a conversation that outlives its connections, the sending end: numbers messages
// from 1 and keeps each until the other side has acknowledged it. `Message` has a field `sequence`.
template <typename Message>
class Outbox {
 public:
  // The message as it is to be sent.
  const Message& Add(Message message) {
    message.set_sequence(++last_);
    kept_.push_back(std::move(message));
    return kept_.back();
  }
  void Acknowledge(uint64_t through) {
    while (!kept_.empty() && kept_.front().sequence() <= through) kept_.pop_front();
  }
  // Not acknowledged yet, in order.
  const std::deque<Message>& kept() const { return kept_; }
  uint64_t last() const { return last_; }

 private:
  std::deque<Message> kept_;
  uint64_t last_ = 0;
};

// An agent that stands between numbers its own words from here on, so that they are told apart from
// those that it passes on.
inline constexpr uint64_t kOwnSequences = uint64_t{1} << 63;

// The receiving end.
class Inbox {
 public:
  // Whether this message is the next one. Others were seen, or come again in their order. What has
  // no sequence (0) is not kept by the sender and always taken.
  bool Take(uint64_t sequence) {
    if (sequence == 0) return true;
    if (sequence != last_ + 1) return false;
    last_ = sequence;
    return true;
  }
  uint64_t last() const { return last_; }

 private:
  uint64_t last_ = 0;
};

}  // namespace dtrain
