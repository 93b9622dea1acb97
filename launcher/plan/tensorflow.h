// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/plan/plan.h"

// TF_CONFIG: which rank is which task of a TensorFlow cluster. Pure. Source: TensorFlow's
// TFConfigClusterResolver.
namespace dtrain::plan {

// "chief,worker:4,ps" is a list of types with their numbers, in rank order. At most one has none
// and takes the ranks that are left; a chief or evaluator is one.
absl::StatusOr<std::vector<TensorflowTasks>> ParseTensorflowLayout(absl::string_view text);

// Gives each rank of the plan its type and index. Fails when the numbers do not fit the ranks.
absl::Status AssignTensorflow(const std::vector<TensorflowTasks>& layout, Plan& plan);

// The JSON text of the "cluster" object; `addresses` are "host:port" by rank.
std::string TensorflowCluster(const Plan& plan, const std::vector<std::string>& addresses);

}  // namespace dtrain::plan
