// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "dtrain/v1/job.pb.h"

namespace dtrain::view {

// What a rank does with libdtrain, the same in every answer.
nlohmann::ordered_json CollectiveView(const v1::RankProgress& progress);

}  // namespace dtrain::view
