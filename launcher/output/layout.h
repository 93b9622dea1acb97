// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtrain::output {

// Where the ranks are, as far as output depends on it.
struct Layout {
  struct Place {
    uint32_t node = 0;
    uint32_t local_rank = 0;
  };
  std::string job_id;
  uint32_t attempt = 0;
  std::vector<std::string> hosts;  // by node rank
  std::vector<Place> ranks;
};

}  // namespace dtrain::output
