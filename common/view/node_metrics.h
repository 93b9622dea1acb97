// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "dtrain/v1/agent.pb.h"

namespace dtrain::view {

// Help and type, which stand before a family's first sample.
void AddFamily(std::string& out, absl::string_view name, absl::string_view type,
               absl::string_view help);
// A label's value, escaped.
std::string Label(absl::string_view text);

// A node in OpenMetrics 1.0, or in Prometheus' older text format. Pure.
std::string NodeMetrics(const v1::NodeReport& report, const std::string& host, bool openmetrics);

}  // namespace dtrain::view
