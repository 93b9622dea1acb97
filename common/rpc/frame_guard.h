// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dtrain::rpc {

// Calls that a peer may have at a time. A launcher has two, who asks for status one.
inline constexpr int kMostCalls = 100;

// The longest message that a server takes: a fence of a large job.
inline constexpr size_t kMostMessage = 32 << 20;

// Bytes that many may have together, those of one user, however many connections and calls he has.
class SharedLimit {
 public:
  explicit SharedLimit(size_t most) : most_(most) {}
  // False: there is no room for it.
  bool Add(size_t bytes) {
    if (bytes > most_ - bytes_) return false;
    bytes_ += bytes;
    return true;
  }
  void Remove(size_t bytes) { bytes_ -= bytes; }
  size_t most() const { return most_; }

 private:
  const size_t most_;
  size_t bytes_ = 0;
};

// PURE. Reads along with what an HTTP/2 client sends, and tells what no launcher does and gRPC 1.51
// takes for as long as it comes, with memory for each of it: calls that are taken back by the
// thousand, headers without an end, calls beyond kMostCalls, which gRPC refuses only once the
// peer has acknowledged that number, and messages that are too long, or many and never whole.
class FrameGuard {
 public:
  // `unfinished`: of messages that are not whole yet, which gRPC keeps. May be null: then there is
  // no limit to it.
  explicit FrameGuard(std::shared_ptr<SharedLimit> unfinished = nullptr);
  ~FrameGuard();
  FrameGuard(FrameGuard&&) = default;
  FrameGuard& operator=(FrameGuard&&) = delete;
  // The next bytes of the connection. RESOURCE_EXHAUSTED: it is to be closed.
  absl::Status Take(absl::string_view bytes);

 private:
  // A gRPC message on its way: five bytes that tell its length, then that many.
  struct Message {
    std::string head;
    size_t left = 0;
    size_t counted = 0;
  };
  absl::Status OnHead();
  absl::Status OnData(absl::string_view bytes);
  absl::Status Count(Message& message, size_t bytes);
  void Forget(uint32_t stream);

  size_t skip_;                           // of what is no frame's head: the preface, then payloads
  size_t data_ = 0;                       // of them, what is a message's
  uint32_t stream_ = 0;                   // of data_
  bool ends_stream_ = false;              // data_ does
  std::map<uint32_t, Message> messages_;  // that are not whole
  std::shared_ptr<SharedLimit> unfinished_;
  size_t counted_ = 0;  // in it, by us
  std::string head_;    // as far as it is here
  size_t block_ = 0;    // bytes of the header block that is coming
  size_t resets_ = 0;
  int unacknowledged_ = 0;  // calls before the peer acknowledged our settings
  bool acknowledged_ = false;
};

}  // namespace dtrain::rpc
