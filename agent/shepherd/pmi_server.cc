// SPDX-License-Identifier: Apache-2.0
#include "agent/shepherd/pmi_server.h"

#include "common/base/check.h"

namespace dtrain::shepherd {

PmiServer::PmiServer(const v1::JobPart& part) : group_(part), lines_(group_), frames_(group_) {}

PmiServer::Actions PmiServer::OnMessage(uint32_t rank, absl::string_view message) {
  const auto it = group_.clients().find(rank);
  DTRAIN_CHECK(it != group_.clients().end());  // connections are made from the same part
  PmiClient& client = it->second;
  if (client.gone || client.dropped) return {};
  return client.frames ? frames_.OnFrame(rank, client, message)
                       : lines_.OnLine(rank, client, message);
}

}  // namespace dtrain::shepherd
