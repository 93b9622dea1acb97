// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace dtrain::runtime {

// What a rank tells the others before the communicator is made.
struct Member {
  std::string error;  // why this rank cannot take part; the rest may then be empty
  std::string host;   // its name, for messages
  std::string node;   // tells machines apart
  std::string uuid;   // of its GPU
  std::string pci;
  int nccl_version = 0;
  bool share_gpu = false;
  std::string ip;  // where its alarm listens; empty: it has none
  uint16_t port = 0;
  std::string token;
  std::string unique_id;  // of rank 0: the 128 bytes
};

// Any bytes; under 2 KiB.
std::string EncodeMember(const Member& member);
// nullopt when `bytes` is not such a record.
std::optional<Member> DecodeMember(std::string_view bytes);

// Whether these ranks can form a communicator. The same answer on every rank, as all have the same
// table: a rank that cannot take part, different NCCL versions, one GPU given to two ranks (M6).
MaybeError CheckMembers(const std::vector<Member>& members);

// "rank 3 (host b)".
std::string RankAt(int rank, const Member& member);

}  // namespace dtrain::runtime
