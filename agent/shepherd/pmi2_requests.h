// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/shepherd/pmi_group.h"
#include "agent/shepherd/pmi_line.h"

namespace dtrain::shepherd {

// A PMI-2 message: the length of its body in six characters, decimal and padded with blanks, then
// "cmd=name;key=value;...;". A ';' inside a value is doubled; a value may hold any other byte.
inline constexpr size_t kPmi2HeaderSize = 6;
// What clients have room for.
inline constexpr size_t kPmi2BodyMax = 64 << 10;

using Pmi2Fields = std::vector<std::pair<absl::string_view, std::string>>;

// How many of `bytes` make up the first frame; 0: more must come. A header that is not a length is
// taken for a whole frame, which the parser refuses.
size_t Pmi2FrameSize(absl::string_view bytes);

// Fails on anything but one whole frame; never on a command that it does not know. A key may come
// several times (spawn); Find returns the first.
absl::StatusOr<PmiRequest> ParsePmi2Frame(absl::string_view frame);

std::string FormatPmi2Frame(absl::string_view command, const Pmi2Fields& fields);

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
