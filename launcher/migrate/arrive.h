// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "dtrain/v1/agent.pb.h"

namespace dtrain::migrate {

// Whether a node's agent has this job of the caller's, not another user's of that id (ADR 51). An
// admin sees those of all: `account` is whose it must be, where that is known; empty: it is not.
bool HasOwnJob(const v1::NodeReport& report, const std::string& id, const std::string& account);

// The end of `dtrain migrate` at which the job is to be, over our stdin and stdout. Before it is
// told to take the job, the other end's going is the end of it all; afterwards it goes through with
// it. Returns the exit code, for whom it may concern.
int Arrive();

}  // namespace dtrain::migrate
