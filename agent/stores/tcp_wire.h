// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::stores {

// The protocol of PyTorch's TCPStore has two numberings of the same operations. The classic one is
// spoken up to torch 2.0; from 2.1 on a connection starts with VALIDATE and a magic number.
enum class TcpDialect { kUnknown, kClassic, kValidated };

enum class TcpOp {
  kValidate,
  kSet,
  kCompareSet,
  kGet,
  kAdd,
  kCheck,
  kWait,
  kGetNumKeys,
  kWatchKey,
  kDeleteKey,
  kAppend,
  kMultiGet,
  kMultiSet,
  kCancelWait,
  kPing,
  kQueuePush,
  kQueuePop,
  kQueueLen,
  kListKeys,
  kBarrier,
};
absl::string_view TcpOpName(TcpOp op);

struct TcpRequest {
  TcpOp op = TcpOp::kValidate;
  std::vector<std::string> texts;  // keys and values, in the order of the wire
  int64_t number = 0;              // of ADD, BARRIER and PING
};

// PyTorch's own limits, except that it allows values of 8 MiB (from 2.1 on; before, any).
inline constexpr size_t kMostTcpKey = 8 << 10;
inline constexpr size_t kMostTcpValue = 32 << 20;
inline constexpr uint64_t kMostTcpKeysAtOnce = 128 << 10;
inline constexpr size_t kMostTcpRequest = 64 << 20;

// Requests out of the bytes of one connection, in whatever pieces they come. Pure.
class TcpParser {
 public:
  // Takes bytes from the front of `bytes` until a request is whole; nothing: it needs more. After
  // an error, which says what the peer has sent, the connection is worth nothing.
  absl::StatusOr<std::optional<TcpRequest>> Next(absl::string_view& bytes);

  TcpDialect dialect() const { return dialect_; }
  // What the request that is not whole yet takes in memory, roughly.
  size_t buffered() const { return buffered_; }

 private:
  absl::Status TakeOp(absl::string_view& bytes);
  absl::Status Begin(uint8_t number);
  // False: it needs more bytes.
  absl::StatusOr<bool> TakeField(absl::string_view& bytes);
  absl::StatusOr<bool> TakeText(absl::string_view& bytes, size_t most);
  absl::Status BeginRepeats(uint64_t count);
  bool Gather(absl::string_view& bytes, size_t size);
  uint64_t Gathered(size_t size) const;

  TcpDialect dialect_ = TcpDialect::kUnknown;
  bool has_op_ = false;
  TcpRequest request_;
  absl::string_view shape_;     // of the request: one letter for each field
  size_t field_ = 0;            // the one that comes next
  uint64_t repeats_ = 0;        // how often the fields after the '*' come, this time included
  std::optional<size_t> left_;  // of the text whose length is known
  size_t buffered_ = 0;
  char number_[8] = {};
  size_t number_bytes_ = 0;
};

}  // namespace dtrain::stores
