// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "dtrain/v1/job.pb.h"

namespace dtrain::shepherd {

// Where compilers keep what they have made, for the user's next job on the node, too: beside a home
// that other hosts share, where their locks and renames may fail (ADR 60).
struct NodeCaches {
  std::string folder;    // absolute; empty: wherever the programs choose
  std::string why;       // "/home/u is on nfs4"; empty: nobody wants the folder
  absl::Status trouble;  // why there is no folder though it is wanted
};

// Makes the folder, in the first of `places` that takes it. Looks at the home in `agent_env`, which
// may take a second.
NodeCaches ChooseNodeCaches(v1::NodeCaches wanted, const std::vector<std::string>& agent_env,
                            const std::vector<std::string>& places = {"/var/tmp", "/tmp"});

// Variables and the names of what they point to below the folder.
struct CacheName {
  const char* variable;
  const char* name;
  const char* unless;  // a variable that also says where it is; empty: there is none
};
inline constexpr CacheName kCacheNames[] = {{"CUDA_CACHE_PATH", "cuda", ""},
                                            {"TORCHINDUCTOR_CACHE_DIR", "inductor", ""},
                                            {"TORCH_EXTENSIONS_DIR", "torch_extensions", ""},
                                            {"TRITON_CACHE_DIR", "triton", "TRITON_HOME"}};

}  // namespace dtrain::shepherd
