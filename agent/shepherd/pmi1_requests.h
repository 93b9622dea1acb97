// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "agent/shepherd/pmi_group.h"

namespace dtrain::shepherd {

// Answers lines: PMI-1, and the first exchange of PMI-2. Pure.
class Pmi1Requests {
 public:
  // `group` must stay.
  explicit Pmi1Requests(PmiGroup& group) : group_(group) {}

  PmiActions OnLine(uint32_t rank, PmiClient& client, absl::string_view line);

 private:
  PmiActions OnRequest(uint32_t rank, PmiClient& client, const PmiRequest& request);
  static PmiActions OnSpawnLine(uint32_t rank, PmiClient& client, absl::string_view line);
  static std::string Init(PmiClient& client, const PmiRequest& request);
  std::string Put(const PmiRequest& request);
  std::string Get(PmiClient& client, const PmiRequest& request) const;

  PmiGroup& group_;
};

}  // namespace dtrain::shepherd
