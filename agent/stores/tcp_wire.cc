// SPDX-License-Identifier: Apache-2.0
#include "agent/stores/tcp_wire.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtrain::stores {
namespace {

constexpr uint32_t kMagic = 0x3C85F7CE;
// What a text costs besides its bytes.
constexpr size_t kPerText = 48;

struct Operation {
  TcpOp op;
  const char* name;
  // k: key, v: value, n: 8 bytes, u: 4 bytes, *: how often the rest comes
  const char* shape;
  int classic;  // its number, -1: there is none
  int validated;
};

// From c10d/TCPStore.cpp (torch 2.0) and c10d/TCPStoreBackend.hpp (2.1 on). QUEUE_* came with 2.8,
// LIST_KEYS and BARRIER later.
constexpr Operation kOperations[] = {
    {TcpOp::kValidate, "VALIDATE", "u", -1, 0},
    {TcpOp::kSet, "SET", "kv", 0, 1},
    {TcpOp::kCompareSet, "COMPARE_SET", "kvv", 1, 2},
    {TcpOp::kGet, "GET", "k", 2, 3},
    {TcpOp::kAdd, "ADD", "kn", 3, 4},
    {TcpOp::kCheck, "CHECK", "*k", 4, 5},
    {TcpOp::kWait, "WAIT", "*k", 5, 6},
    {TcpOp::kGetNumKeys, "GETNUMKEYS", "", 6, 7},
    {TcpOp::kWatchKey, "WATCH_KEY", "k", 7, -1},
    {TcpOp::kDeleteKey, "DELETE_KEY", "k", 8, 8},
    {TcpOp::kAppend, "APPEND", "kv", 9, 9},
    {TcpOp::kMultiGet, "MULTI_GET", "*k", 10, 10},
    {TcpOp::kMultiSet, "MULTI_SET", "*kv", 11, 11},
    {TcpOp::kCancelWait, "CANCEL_WAIT", "", 12, 12},
    {TcpOp::kPing, "PING", "u", -1, 13},
    {TcpOp::kQueuePush, "QUEUE_PUSH", "kv", -1, 14},
    {TcpOp::kQueuePop, "QUEUE_POP", "k", -1, 15},
    {TcpOp::kQueueLen, "QUEUE_LEN", "k", -1, 16},
    {TcpOp::kListKeys, "LIST_KEYS", "", -1, 17},
    {TcpOp::kBarrier, "BARRIER", "kn", -1, 18},
};

const Operation& OperationOf(TcpOp op) {
  return *std::find_if(std::begin(kOperations), std::end(kOperations),
                       [op](const Operation& each) { return each.op == op; });
}

}  // namespace

absl::string_view TcpOpName(TcpOp op) { return OperationOf(op).name; }

absl::StatusOr<std::optional<TcpRequest>> TcpParser::Next(absl::string_view& bytes) {
  if (!has_op_) {
    if (absl::Status taken = TakeOp(bytes); !taken.ok()) return taken;
    if (!has_op_) return std::nullopt;
  }
  while (field_ < shape_.size()) {
    const absl::StatusOr<bool> taken = TakeField(bytes);
    if (!taken.ok()) return taken.status();
    if (!*taken) return std::nullopt;
    ++field_;
    if (field_ == shape_.size() && repeats_ > 1) {
      --repeats_;
      field_ = 1;  // after the '*'
    }
  }
  has_op_ = false;
  buffered_ = 0;
  return std::exchange(request_, {});
}

// A connection of the classic kind may begin with 0 too, which is SET there. What follows would be
// the length of a key, and the magic number is far too much for one.
absl::Status TcpParser::TakeOp(absl::string_view& bytes) {
  if (bytes.empty()) return absl::OkStatus();
  if (dialect_ != TcpDialect::kUnknown) {
    const auto number = static_cast<uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    return Begin(number);
  }
  if (number_bytes_ == 0 && bytes.front() != 0) {
    dialect_ = TcpDialect::kClassic;
    return TakeOp(bytes);
  }
  if (!Gather(bytes, 5)) return absl::OkStatus();
  uint32_t after = 0;
  std::memcpy(&after, number_ + 1, sizeof(after));
  if (after == kMagic) {
    dialect_ = TcpDialect::kValidated;
    if (absl::Status begun = Begin(0); !begun.ok()) return begun;
    field_ = shape_.size();
    return absl::OkStatus();
  }
  dialect_ = TcpDialect::kClassic;
  std::memmove(number_, number_ + 1, sizeof(after));
  number_bytes_ = sizeof(after);
  return Begin(0);
}

absl::Status TcpParser::Begin(uint8_t number) {
  const bool classic = dialect_ == TcpDialect::kClassic;
  for (const Operation& each : kOperations) {
    if ((classic ? each.classic : each.validated) != number) continue;
    has_op_ = true;
    request_.op = each.op;
    shape_ = each.shape;
    field_ = 0;
    repeats_ = 0;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("it sent operation ", number, ", which PyTorch's store does not have ",
                   classic ? "up to torch 2.0, whose protocol it speaks" : "as far as is known"));
}

absl::StatusOr<bool> TcpParser::TakeField(absl::string_view& bytes) {
  switch (shape_[field_]) {
    case 'k':
      return TakeText(bytes, kMostTcpKey);
    case 'v':
      return TakeText(bytes, kMostTcpValue);
    case 'u':
      if (!Gather(bytes, 4)) return false;
      request_.number = static_cast<int64_t>(Gathered(4));
      if (request_.op == TcpOp::kValidate && request_.number != kMagic) {
        return absl::InvalidArgumentError("it sent VALIDATE without the magic number");
      }
      return true;
    case 'n':
      if (!Gather(bytes, 8)) return false;
      request_.number = static_cast<int64_t>(Gathered(8));
      return true;
    default:
      if (!Gather(bytes, 8)) return false;
      if (absl::Status begun = BeginRepeats(Gathered(8)); !begun.ok()) return begun;
      return true;
  }
}

absl::Status TcpParser::BeginRepeats(uint64_t count) {
  if (count > kMostTcpKeysAtOnce) {
    return absl::InvalidArgumentError(absl::StrCat("it sent ", TcpOpName(request_.op), " of ",
                                                   count, " keys; the limit is ",
                                                   kMostTcpKeysAtOnce));
  }
  repeats_ = count;
  if (count == 0) field_ = shape_.size() - 1;
  return absl::OkStatus();
}

// Room is made as bytes come, not as they are announced.
absl::StatusOr<bool> TcpParser::TakeText(absl::string_view& bytes, size_t most) {
  if (!left_) {
    if (!Gather(bytes, 8)) return false;
    const uint64_t size = Gathered(8);
    const bool is_key = most == kMostTcpKey;
    if (size > most) {
      return absl::InvalidArgumentError(absl::StrCat("it sent ", TcpOpName(request_.op), " with a ",
                                                     is_key ? "key" : "value", " of ", size,
                                                     " bytes; the limit is ", most));
    }
    if (buffered_ + size + kPerText > kMostTcpRequest) {
      return absl::InvalidArgumentError(absl::StrCat("it sent ", TcpOpName(request_.op),
                                                     " of more than ", kMostTcpRequest, " bytes"));
    }
    left_ = size;
    buffered_ += kPerText;
    request_.texts.emplace_back();
  }
  const size_t now = std::min(*left_, bytes.size());
  request_.texts.back().append(bytes.data(), now);
  bytes.remove_prefix(now);
  buffered_ += now;
  *left_ -= now;
  if (*left_ > 0) return false;
  left_.reset();
  return true;
}

bool TcpParser::Gather(absl::string_view& bytes, size_t size) {
  const size_t now = std::min(size - number_bytes_, bytes.size());
  if (now > 0) std::memcpy(number_ + number_bytes_, bytes.data(), now);
  bytes.remove_prefix(now);
  number_bytes_ += now;
  if (number_bytes_ < size) return false;
  number_bytes_ = 0;
  return true;
}

// As PyTorch writes them: in the machine's own order, which is little-endian wherever it runs.
uint64_t TcpParser::Gathered(size_t size) const {
  uint64_t value = 0;
  std::memcpy(&value, number_, size);
  return value;
}

}  // namespace dtrain::stores
