// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "agent/auth/identity.h"
#include "dtrain/v1/agent.pb.h"

namespace dtrain::agent {

// What any agent tells of itself and how busy its node is. A resident one adds since when it
// serves, by which it is told apart.
v1::NodeReport AboutNode();

// Of who could start this agent, or be it: he may do all that it can do.
auth::Identity OwnIdentity(const std::string& proof);

}  // namespace dtrain::agent
