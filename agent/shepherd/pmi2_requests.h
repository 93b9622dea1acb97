// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "agent/shepherd/pmi_group.h"

namespace dtrain::shepherd {

// Answers frames: PMI-2's commands, as MPICH's and Slurm's clients send them. Keeps the attributes
// of the node. Pure.
class Pmi2Requests {
 public:
  // `group` must stay.
  explicit Pmi2Requests(PmiGroup& group) : group_(group) {}

  PmiActions OnFrame(uint32_t rank, PmiClient& client, absl::string_view frame);

 private:
  PmiActions Fullinit(uint32_t rank, PmiClient& client, const PmiRequest& request);
  PmiActions JobGetid(uint32_t rank, PmiClient& client, const PmiRequest& request);
  PmiActions KvsPut(uint32_t rank, PmiClient& client, const PmiRequest& request);
  PmiActions KvsGet(uint32_t rank, PmiClient& client, const PmiRequest& request);
  PmiActions KvsFence(uint32_t rank, PmiClient& client, const PmiRequest& request);
  PmiActions GetJobAttribute(uint32_t rank, PmiClient& client, const PmiRequest& request);
  PmiActions PutNodeAttribute(uint32_t rank, PmiClient& client, const PmiRequest& request);
  PmiActions GetNodeAttribute(uint32_t rank, PmiClient& client, const PmiRequest& request);
  PmiActions NoNameService(uint32_t rank, PmiClient& client, const PmiRequest& request);
  PmiActions NotSupported(uint32_t rank, PmiClient& client, const PmiRequest& request);
  PmiActions AbortAll(uint32_t rank, PmiClient& client, const PmiRequest& request);
  PmiActions Finalize(uint32_t rank, PmiClient& client, const PmiRequest& request);

  PmiGroup& group_;
  std::map<std::string, std::string> node_attributes_;
  size_t node_attribute_bytes_ = 0;
};

}  // namespace dtrain::shepherd
