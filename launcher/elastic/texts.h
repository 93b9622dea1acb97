// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "launcher/elastic/events.h"
#include "launcher/elastic/failures.h"
#include "launcher/elastic/runs.h"

// What ElasticCore says. Pure functions.
namespace dtrain::elastic {

// "4 ranks are needed (-np), 2 are there"
std::string WantText(const Least& least, const Plan& plan, bool first_round);

// "; missing: node3 (connection refused), node4 (rank 5 exited with code 1)", or nothing.
std::string MissingText(const std::vector<MissingHost>& missing);

// "node5 joins the job"
std::string JoinText(std::vector<std::string> hosts);

// "round 2 has 6 ranks on 3 hosts"
std::string RoundText(uint64_t round, const Plan& plan);

// Who of the present round has neither ended nor come back.
std::string StuckText(const Runs& runs, const Failure& first, Duration since);

// Some ranks have ended with 0, and all others wait for a round that will not come.
std::string LeftWaitingText(const Runs& runs);

// "2 of 2 ranks have not called hvd.init() within 600 s; is it an elastic Horovod script?"
std::string LateText(const Run& run, Duration limit);

}  // namespace dtrain::elastic
