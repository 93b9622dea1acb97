// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace dtrain::runtime {

// What a rank tells the others before the communicator is made.
struct Member {
  std::string error;  // why this rank cannot take part; the rest may then be empty
  int job_rank = -1;  // its number in texts; -1: that of the communicator
  std::string host;   // its name, for messages
  std::string node;   // tells machines apart
  std::string uuid;   // of its GPU
  std::string pci;
  std::string pinned;  // UUID of the GPU that the launcher gave it; empty: not known
  bool stray = false;  // its GPU is none of those that the launcher made it see
  int nccl_version = 0;
  bool share_gpu = false;
  bool several_per_gpu = false;  // NCCL_MULTI_RANK_GPU_ENABLE=1
  std::string settings;  // of NCCL's that must be the same everywhere: "NCCL_ALGO=Ring NCCL_NET=IB"
  std::string unique_id;  // of rank 0: the 128 bytes
};

// Any bytes; under 2 KiB.
std::string EncodeMember(const Member& member);
// nullopt when `bytes` is not such a record.
std::optional<Member> DecodeMember(std::string_view bytes);

// What of this process's environment NCCL wants to be the same on all ranks, and does not check.
std::string NcclSettings(const std::function<const char*(const char*)>& get);

// Whether these ranks can form a communicator. The same answer on every rank, as all have the same
// table: a rank that cannot take part, different NCCL versions or settings, one GPU given to two
// ranks (M6).
MaybeError CheckMembers(const std::vector<Member>& members);

// Which ranks use another GPU than the launcher gave them, in one sentence; empty: none. That may
// be what the program wants.
std::string DescribeStrays(const std::vector<Member>& members);

// "rank 3 (host b)", of the communicator's rank `rank`.
std::string RankAt(int rank, const Member& member);

}  // namespace dtrain::runtime
