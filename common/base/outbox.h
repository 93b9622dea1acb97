// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

namespace dtrain {

// One direction of a conversation that outlives its connections, the sending end: numbers messages
// from 1 and keeps each until the other side has acknowledged it. `Message` has a field `sequence`.
//
// Both sides acknowledge with every message, and stdin and fences wait for an answer, so a healthy
// conversation keeps a few messages per worker. The limits are for a side that does not
// acknowledge: the sender then ends the conversation.
template <typename Message>
class Outbox {
 public:
  static constexpr size_t kMostMessages = 1 << 16;
  // A start of 64 MiB, and 64 KiB of stdin for each of a thousand workers.
  static constexpr size_t kMostBytes = 256 << 20;

  // The message as it is to be sent.
  const Message& Add(Message message) {
    message.set_sequence(++last_);
    bytes_ += message.ByteSizeLong();
    kept_.push_back(std::move(message));
    return kept_.back();
  }
  void Acknowledge(uint64_t through) {
    while (!kept_.empty() && kept_.front().sequence() <= through) {
      bytes_ -= kept_.front().ByteSizeLong();
      kept_.pop_front();
    }
  }
  // No room for another message.
  bool full() const { return kept_.size() >= kMostMessages || bytes_ >= kMostBytes; }
  // Not acknowledged yet, in order.
  const std::deque<Message>& kept() const { return kept_; }
  uint64_t last() const { return last_; }

 private:
  std::deque<Message> kept_;
  size_t bytes_ = 0;  // of kept_
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
