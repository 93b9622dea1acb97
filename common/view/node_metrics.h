// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "dtrain/v1/agent.pb.h"

namespace dtrain::view {

// A node in OpenMetrics 1.0, or in Prometheus' older text format. Pure.
std::string NodeMetrics(const v1::NodeReport& report, const std::string& host, bool openmetrics);

}  // namespace dtrain::view
