// SPDX-License-Identifier: Apache-2.0
#include "agent/roles/job_roles.h"

#include "agent/pmix/run_pmix.h"
#include "agent/shepherd/helper.h"
#include "agent/shepherd/run_shepherd.h"
#include "agent/stores/run_store.h"

namespace dtrain::roles {
namespace {

// Of a shepherd: connected to its agent.
constexpr int kShepherdSocket = 3;

}  // namespace

std::optional<int> RunJobRole(const std::vector<std::string>& words) {
  if (words.size() != 1) return std::nullopt;
  const std::string& role = words[0];
  if (role == "shepherd") return shepherd::RunShepherd(kShepherdSocket);
  if (role == "pmix") return pmix::RunPmix(shepherd::kHelperChannel, shepherd::kHelperListener);
  if (role != "store" && role != "tcpstore") return std::nullopt;
  return stores::RunStore(
      role == "store" ? stores::Protocol::kHorovod : stores::Protocol::kTcpStore,
      shepherd::kHelperChannel, shepherd::kHelperListener);
}

}  // namespace dtrain::roles
