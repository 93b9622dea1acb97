// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/stores/tcp_store.h"
#include "agent/stores/tcp_wire.h"

namespace dtrain::stores {

// As the machine has it, and PyTorch sends it.
template <typename Number>
std::string Bytes(Number number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof(number));
}
inline std::string B64(uint64_t number) { return Bytes(number); }
inline std::string Str(const std::string& text) { return B64(text.size()) + text; }
inline std::string Byte(int value) { return std::string(1, static_cast<char>(value)); }

inline const std::string& Greeting() {
  static const auto& greeting = *new std::string("\x00\xCE\xF7\x85\x3C", 5);
  return greeting;
}

// Numbers of operations, by dialect: {classic, validated}; -1: it does not have it.
struct Op {
  int classic;
  int validated;
};
inline constexpr Op kSet{0, 1}, kCompareSet{1, 2}, kGet{2, 3}, kAdd{3, 4}, kCheck{4, 5},
    kWait{5, 6}, kNumKeys{6, 7}, kWatch{7, -1}, kDelete{8, 8}, kAppend{9, 9}, kMultiGet{10, 10},
    kMultiSet{11, 11}, kCancelWait{12, 12}, kPing{-1, 13}, kQueuePush{-1, 14}, kQueuePop{-1, 15},
    kQueueLen{-1, 16}, kListKeys{-1, 17}, kBarrier{-1, 18};

// A store and connections to it, whose bytes are written out.
class TcpClients : public testing::TestWithParam<TcpDialect> {
 protected:
  bool validated() const { return GetParam() == TcpDialect::kValidated; }
  std::string Number(Op op) const { return Byte(validated() ? op.validated : op.classic); }

  // What `client` says; the error that closes it.
  absl::Status Say(uint64_t client, absl::string_view bytes) {
    auto [place, is_new] = parsers_.try_emplace(client);
    if (is_new && validated()) {
      if (absl::Status greeted = Feed(client, Greeting()); !greeted.ok()) return greeted;
    }
    return Feed(client, bytes);
  }
  // What it says, and is answered.
  std::string Ask(uint64_t client, absl::string_view bytes) {
    EXPECT_EQ(Say(client, bytes), absl::OkStatus());
    return Heard(client);
  }
  // Since the last look.
  std::string Heard(uint64_t client) { return std::exchange(heard_[client], ""); }
  std::string Keys(const std::vector<std::string>& keys) const {
    std::string out = B64(keys.size());
    for (const std::string& key : keys) out += Str(key);
    return out;
  }
  void Leave(uint64_t client) { store_.Leave(client); }

  TcpStore store_;

 private:
  absl::Status Feed(uint64_t client, absl::string_view bytes) {
    while (true) {
      auto next = parsers_.at(client).Next(bytes);
      if (!next.ok()) return next.status();
      if (!*next) return absl::OkStatus();
      TcpStore::Outcome outcome = store_.Handle(client, **next);
      for (const TcpStore::Reply& reply : outcome.replies) heard_[reply.to] += *reply.bytes;
      if (!outcome.refused.ok()) return outcome.refused;
    }
  }
  std::map<uint64_t, TcpParser> parsers_;
  std::map<uint64_t, std::string> heard_;
};

inline std::string DialectName(const testing::TestParamInfo<TcpDialect>& info) {
  return info.param == TcpDialect::kClassic ? "Classic" : "Validated";
}

}  // namespace dtrain::stores
